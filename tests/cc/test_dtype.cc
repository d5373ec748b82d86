#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "core/dtype.h"

namespace riftco {
namespace {

std::vector<std::byte> read_golden(const std::string& name) {
  std::ifstream file(std::string(std::getenv("RIFTCO_TEST_DATA")) + "/gguf/" + name, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::byte> out(bytes.size());
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// The gguf package's dequantiser, bit for bit: <type>.blocks.bin are file blocks, <type>.values.bin their float32 values.
TEST(DType, DequantisesAsTheGgufPackageDoes) {
  for (const DType type : kAllTypes) {
    if (!is_quantised(type)) continue;
    const std::string name = dtype_info(type).name;
    const auto blocks = read_golden(name + ".blocks.bin"), expected = read_golden(name + ".values.bin");
    const size_t count = blocks.size() / dtype_info(type).bytes * dtype_info(type).block;
    ASSERT_GT(count, 1000u);
    ASSERT_EQ(expected.size(), 4 * count);
    std::vector<float> values(count);
    dequantise(type, blocks.data(), values);
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), expected.size()), 0) << name;
  }
}

double half_value(uint16_t half) {  // by the definition of IEEE 754
  const int exponent = (half >> 10) & 31, mantissa = half & 1023;
  const double sign = half & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return sign * std::ldexp(exponent ? 1024 + mantissa : mantissa, (exponent ? exponent : 1) - 25);
}

TEST(DType, EveryHalfIsExactAndComesBack) {
  for (uint32_t h = 0; h < 0x10000; h++) {
    const float value = half_to_float(uint16_t(h));
    if (std::isnan(half_value(uint16_t(h)))) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value))));
      continue;
    }
    EXPECT_EQ(double(value), half_value(uint16_t(h)));
    EXPECT_EQ(std::signbit(value), (h & 0x8000) != 0);
    EXPECT_EQ(float_to_half(value), h);
  }
}

// Of the two halves around a float the nearer one, the even one in the middle; overflow from 65520 on.
TEST(DType, FloatToHalfRoundsToNearestEven) {
  for (uint32_t h = 0; h < 0x7BFF; h++) {
    const double low = half_value(uint16_t(h)), high = half_value(uint16_t(h + 1));
    const float middle = float((low + high) / 2);  // exact: one bit more than a half has
    EXPECT_EQ(float_to_half(middle), h % 2 ? h + 1 : h) << h;
    EXPECT_EQ(float_to_half(std::nextafterf(middle, 0)), h);
    EXPECT_EQ(float_to_half(std::nextafterf(middle, 1e9f)), h + 1);
    EXPECT_EQ(float_to_half(-middle), (h % 2 ? h + 1 : h) | 0x8000);
  }
  EXPECT_EQ(float_to_half(65519.996f), 0x7BFF);
  EXPECT_EQ(float_to_half(65520.0f), 0x7C00);
  EXPECT_EQ(float_to_half(-3e38f), 0xFC00);
  EXPECT_EQ(float_to_half(1e-30f), 0);
}

TEST(DType, FloatToBf16RoundsToNearestEven) {
  for (uint64_t i = 0; i < 100000; i++) {
    const float value = __builtin_bit_cast(float, uint32_t(random_bits(1, i)));
    if (!std::isfinite(value)) continue;
    const float rounded = bf16_to_float(float_to_bf16(value));
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    const float down = bf16_to_float(uint16_t(bits >> 16)), up = bf16_to_float(uint16_t((bits >> 16) + 1));
    const double to_down = std::fabs(double(value) - down), to_up = std::fabs(double(up) - value);
    if (std::isfinite(up)) {
      EXPECT_EQ(rounded, to_down < to_up || (to_down == to_up && (bits >> 16) % 2 == 0) ? down : up);
    }
  }
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::nanf("1")))));
}

TEST(DType, RowsAreWholeBlocks) {
  EXPECT_EQ(row_bytes(DType::q4_1, 64), 40u);
  EXPECT_EQ(row_bytes(DType::q8_0, 32), 34u);
  EXPECT_EQ(row_bytes(DType::q6_k, 512), 420u);
  EXPECT_THROW(row_bytes(DType::q4_k, 128), Error);
  EXPECT_EQ(row_bytes(DType::f16, 7), 14u);
  EXPECT_THROW(row_bytes(DType::q8_0, 33), Error);
  EXPECT_THROW(row_bytes(DType::f32, UINT64_MAX / 2), Error);
}

TEST(DType, FindsWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> row{1, 2, 3};
  EXPECT_TRUE(row_is_finite(DType::f32, reinterpret_cast<std::byte*>(row.data()), 3));
  row[2] = -infinity;
  EXPECT_FALSE(row_is_finite(DType::f32, reinterpret_cast<std::byte*>(row.data()), 3));
  const std::vector<uint16_t> halves{0x3C00, 0x7C00}, bf16{0x3F80, 0x7F80};
  EXPECT_FALSE(row_is_finite(DType::f16, reinterpret_cast<const std::byte*>(halves.data()), 2));
  EXPECT_FALSE(row_is_finite(DType::bf16, reinterpret_cast<const std::byte*>(bf16.data()), 2));
  for (const DType type : kAllTypes) {
    if (!is_quantised(type)) continue;
    const DTypeInfo& info = dtype_info(type);
    std::vector<size_t> scales = {type == DType::q6_k ? 208u : 0u};
    if (type == DType::q4_1 || type == DType::q5_1 || type == DType::q4_k || type == DType::q5_k)
      scales.push_back(2);
    for (const size_t at : scales) {
      std::vector<std::byte> blocks(2 * info.bytes);
      EXPECT_TRUE(row_is_finite(type, blocks.data(), 2 * info.block));
      blocks[info.bytes + at + 1] = std::byte(0x7E);  // in the second block
      EXPECT_FALSE(row_is_finite(type, blocks.data(), 2 * info.block)) << info.name << " " << at;
    }
  }
}

}  // namespace
}  // namespace riftco
