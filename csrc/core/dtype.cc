#include "core/dtype.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace riftco {
namespace {

constexpr std::array<DTypeInfo, 5> kTypes = {
    {{"f32", 1, 4}, {"f16", 1, 2}, {"bf16", 1, 2}, {"q4_1", 32, 20}, {"q8_0", 32, 34}}};

uint16_t load16(const std::byte* p) noexcept {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

bool half_is_finite(uint16_t half) noexcept { return (half & 0x7C00) != 0x7C00; }
bool bf16_is_finite(uint16_t bits) noexcept { return (bits & 0x7F80) != 0x7F80; }

}  // namespace

const DTypeInfo& dtype_info(DType type) noexcept { return kTypes[size_t(type)]; }

size_t row_bytes(DType type, uint64_t elements) {
  const DTypeInfo& info = dtype_info(type);
  if (elements % info.block != 0)
    fail(Status::corrupt_data, "a row of %llu elements is not a whole number of %s blocks of %u",
         static_cast<unsigned long long>(elements), info.name, info.block);
  uint64_t bytes;
  if (__builtin_mul_overflow(elements / info.block, uint64_t(info.bytes), &bytes))
    fail(Status::overflow, "a row of %llu %s elements is too large",
         static_cast<unsigned long long>(elements), info.name);
  return bytes;
}

void dequantise(DType type, const std::byte* row, std::span<float> out) noexcept {
  const size_t n = out.size();
  switch (type) {
    case DType::f32:
      std::memcpy(out.data(), row, 4 * n);
      break;
    case DType::f16:
      for (size_t i = 0; i < n; i++) out[i] = half_to_float(load16(row + 2 * i));
      break;
    case DType::bf16:
      for (size_t i = 0; i < n; i++) out[i] = bf16_to_float(load16(row + 2 * i));
      break;
    case DType::q4_1:
      for (size_t b = 0; b < n / 32; b++, row += 20) {
        const float d = half_to_float(load16(row)), m = half_to_float(load16(row + 2));
        for (size_t i = 0; i < 16; i++) {
          const unsigned q = std::to_integer<unsigned>(row[4 + i]);
          out[32 * b + i] = d * float(q & 15) + m;  // d * q is exact in float, so fusing would change nothing
          out[32 * b + 16 + i] = d * float(q >> 4) + m;
        }
      }
      break;
    case DType::q8_0:
      for (size_t b = 0; b < n / 32; b++, row += 34) {
        const float d = half_to_float(load16(row));
        for (size_t i = 0; i < 32; i++) out[32 * b + i] = d * float(std::to_integer<int8_t>(row[2 + i]));
      }
      break;
  }
}

float half_to_float(uint16_t half) noexcept {
  const uint32_t sign = uint32_t(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 31, mantissa = half & 0x3FF;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7F800000 | (mantissa << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else {  // zero or subnormal: mantissa * 2^-24, exact
    bits = sign | std::bit_cast<uint32_t>(float(mantissa) * 0x1p-24f);
  }
  return std::bit_cast<float>(bits);
}

uint16_t float_to_half(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  const uint32_t abs = bits & 0x7FFFFFFF;
  if (abs > 0x7F800000) return uint16_t(sign | 0x7E00);
  if (abs >= 0x477FF000) return uint16_t(sign | 0x7C00);  // 65520 and above round to infinity
  if (abs < 0x38800000) {                                 // subnormal half: the nearest multiple of 2^-24
    const float scaled =
        std::bit_cast<float>(abs) + 0.5f;  // ulp of [0.5, 1) is 2^-24: rounds to nearest even
    return uint16_t(sign | (std::bit_cast<uint32_t>(scaled) - 0x3F000000));
  }
  const uint32_t rounded = abs + 0xFFF + ((abs >> 13) & 1);
  return uint16_t(sign | ((rounded - 0x38000000) >> 13));
}

uint16_t float_to_bf16(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

bool row_is_finite(DType type, const std::byte* row, uint64_t elements) noexcept {
  const DTypeInfo& info = dtype_info(type);
  bool finite = true;
  for (uint64_t i = 0; i < elements / info.block; i++, row += info.bytes) {
    switch (type) {
      case DType::f32: {
        uint32_t v;
        std::memcpy(&v, row, 4);
        finite &= (v & 0x7F800000) != 0x7F800000;
        break;
      }
      case DType::bf16:
        finite &= bf16_is_finite(load16(row));
        break;
      case DType::q4_1:
        finite &= half_is_finite(load16(row)) && half_is_finite(load16(row + 2));
        break;
      case DType::f16:
      case DType::q8_0:
        finite &= half_is_finite(load16(row));
        break;
    }
  }
  return finite;
}

}  // namespace riftco
