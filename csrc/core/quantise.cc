#include "core/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace riftco {
namespace {

constexpr size_t kBlock = 32;

void store16(std::byte* to, uint16_t value) noexcept { std::memcpy(to, &value, 2); }

// 0 where nothing but zero can be stored: d is 0, or so small that 1 / d is not finite.
float inverse(float d) noexcept { return d == 0 || !std::isfinite(1 / d) ? 0.0f : 1 / d; }

void q8_0_block(const float* x, std::byte* out) noexcept {
  float largest = 0;
  for (size_t i = 0; i < kBlock; i++) largest = std::max(largest, std::fabs(x[i]));
  const float d = largest / 127, scale = inverse(d);
  store16(out, float_to_half(d));
  for (size_t i = 0; i < kBlock; i++) out[2 + i] = std::byte(int8_t(std::round(x[i] * scale)));
}

void q4_0_block(const float* x, std::byte* out) noexcept {
  float largest = x[0];
  for (size_t i = 1; i < kBlock; i++)
    if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
  const float d = largest / -8, scale = inverse(d);
  store16(out, float_to_half(d));
  const auto level = [&](size_t i) { return std::min(uint8_t(x[i] * scale + 8.5f), uint8_t(15)); };
  for (size_t i = 0; i < kBlock / 2; i++) out[2 + i] = std::byte(level(i) | level(i + kBlock / 2) << 4);
}

}  // namespace

void quantise(DType type, std::span<const float> row, std::byte* out) {
  switch (type) {
    case DType::f32:
      std::memcpy(out, row.data(), row.size_bytes());
      return;
    case DType::f16:
      for (size_t i = 0; i < row.size(); i++) store16(out + 2 * i, float_to_half(row[i]));
      return;
    case DType::bf16:
      for (size_t i = 0; i < row.size(); i++) store16(out + 2 * i, float_to_bf16(row[i]));
      return;
    case DType::q8_0:
      for (size_t i = 0; i < row.size(); i += kBlock) q8_0_block(&row[i], out + i / kBlock * 34);
      return;
    case DType::q4_0:
      for (size_t i = 0; i < row.size(); i += kBlock) q4_0_block(&row[i], out + i / kBlock * 18);
      return;
    default:
      fail(Status::unsupported, "%s cannot be written from floats", dtype_info(type).name);
  }
}

}  // namespace riftco
