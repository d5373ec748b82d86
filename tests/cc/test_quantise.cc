// Rounding into file types. The gguf package's own blocks: tests/py/test_save.py.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "core/quantise.h"

namespace riftco {
namespace {

TEST(Quantise, Q8BlocksHoldTheLargestValueAndRoundHalvesAwayFromZero) {
  std::array<float, 32> x{}, back{};
  x[0] = -127;
  x[1] = 2.5f;
  x[2] = -2.5f;
  x[3] = 2.4f;
  std::array<std::byte, 34> block;
  quantise(DType::q8_0, x, block.data());
  dequantise(DType::q8_0, block.data(), back);
  EXPECT_EQ(back[0], -127);
  EXPECT_EQ(back[1], 3);
  EXPECT_EQ(back[2], -3);
  EXPECT_EQ(back[3], 2);
  EXPECT_EQ(back[31], 0);
}

TEST(Quantise, Q4BlocksScaleTheLargestValueToItsEnd) {
  std::array<float, 32> x{}, back{};
  x[0] = 4;  // d = -0.5
  x[1] = -3.5f;
  x[31] = -3;
  std::array<std::byte, 18> block;
  quantise(DType::q4_0, x, block.data());
  dequantise(DType::q4_0, block.data(), back);
  EXPECT_EQ(back[0], 4);
  EXPECT_EQ(back[1], -3.5f);
  EXPECT_EQ(back[31], -3);
  EXPECT_EQ(back[2], 0);
}

TEST(Quantise, BlocksOfNothingButZerosAndTinyValuesAreZeros) {
  for (const float value : {0.0f, 1e-45f, -1e-39f}) {
    std::array<float, 32> x, back;
    x.fill(value);
    std::array<std::byte, 34> block;
    quantise(DType::q8_0, x, block.data());
    dequantise(DType::q8_0, block.data(), back);
    for (const float v : back) EXPECT_EQ(v, 0);
  }
}

TEST(Quantise, FloatsRoundToNearestAndOverflowIsSeen) {
  const std::array<float, 4> x{1.0f, 1.0009765f, -65504.0f, 70000.0f};
  std::array<std::byte, 8> row;
  std::array<float, 4> back;
  quantise(DType::f16, x, row.data());
  dequantise(DType::f16, row.data(), back);
  EXPECT_EQ(back[0], 1.0f);
  EXPECT_EQ(back[1], 1.0009766f);
  EXPECT_EQ(back[2], -65504.0f);
  EXPECT_FALSE(row_is_finite(DType::f16, row.data(), 4));
  quantise(DType::bf16, x, row.data());
  EXPECT_TRUE(row_is_finite(DType::bf16, row.data(), 4));
  EXPECT_THROW(quantise(DType::q4_1, std::array<float, 32>{}, row.data()), Error);
}

}  // namespace
}  // namespace riftco
