#include "core/dtype.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace riftco {
namespace {

constexpr std::array<DTypeInfo, std::size(kAllTypes)> kTypes = {{{"f32", 1, 4},
                                                                 {"f16", 1, 2},
                                                                 {"bf16", 1, 2},
                                                                 {"q4_1", 32, 20},
                                                                 {"q8_0", 32, 34},
                                                                 {"q4_0", 32, 18},
                                                                 {"q5_0", 32, 22},
                                                                 {"q5_1", 32, 24},
                                                                 {"q4_k", 256, 144},
                                                                 {"q5_k", 256, 176},
                                                                 {"q6_k", 256, 210}}};

uint16_t load16(const std::byte* p) noexcept {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

float half_at(const std::byte* p) noexcept { return half_to_float(load16(p)); }
unsigned byte_at(const std::byte* p, size_t i) noexcept { return std::to_integer<unsigned>(p[i]); }

// Element i of 32 from nibble bytes, and with a fifth bit.
unsigned nibble(const std::byte* p, size_t i) noexcept {
  return i < 16 ? byte_at(p, i) & 15 : byte_at(p, i - 16) >> 4;
}
unsigned five_bits(const std::byte* high, const std::byte* p, size_t i) noexcept {
  return nibble(p, i) | (byte_at(high, i / 8) >> i % 8 & 1) << 4;
}

// Scale and minimum of part p from the 12 bytes of q4_k and q5_k.
struct PartScale {
  float scale, minimum;
};
PartScale part_scale(const std::byte* s, size_t p) noexcept {
  if (p < 4) return {float(byte_at(s, p) & 63), float(byte_at(s, p + 4) & 63)};
  return {float((byte_at(s, p + 4) & 15) | byte_at(s, p - 4) >> 6 << 4),
          float(byte_at(s, p + 4) >> 4 | byte_at(s, p) >> 6 << 4)};
}

// A block of q4_k (`fifth` null) or q5_k.
void dequantise_parts(const std::byte* block, const std::byte* fifth, const std::byte* nibbles,
                      float* out) noexcept {
  const float d = half_at(block), n = half_at(block + 2);
  for (size_t p = 0; p < 8; p++) {
    const PartScale part = part_scale(block + 4, p);
    const float scale = d * part.scale, minimum = n * part.minimum;
    for (size_t i = 0; i < 32; i++) {
      unsigned q = byte_at(nibbles, 32 * (p / 2) + i) >> 4 * (p % 2) & 15;
      if (fifth) q |= (byte_at(fifth, i) >> p & 1) << 4;
      out[32 * p + i] = scale * float(q) - minimum;  // the product is exact
    }
  }
}

void dequantise_q6_k(const std::byte* block, float* out) noexcept {
  const float d = half_at(block + 208);
  for (size_t i = 0; i < 256; i++) {
    const size_t half = i / 128, part = i / 32 % 4;
    const unsigned low = byte_at(block, 64 * half + 32 * (part % 2) + i % 32) >> 4 * (part / 2) & 15;
    const unsigned high = byte_at(block, 128 + 32 * half + i % 32) >> 2 * part & 3;
    const float scale = d * float(std::to_integer<int8_t>(block[192 + i / 16]));
    out[i] = scale * float(int(low | high << 4) - 32);
  }
}

void dequantise_block(DType type, const std::byte* block, float* out) noexcept {
  switch (type) {
    case DType::q4_0:
      for (size_t i = 0; i < 32; i++) out[i] = half_at(block) * float(int(nibble(block + 2, i)) - 8);
      break;
    case DType::q4_1:
      for (size_t i = 0; i < 32; i++)
        out[i] = half_at(block) * float(nibble(block + 4, i)) + half_at(block + 2);
      break;
    case DType::q5_0:
      for (size_t i = 0; i < 32; i++)
        out[i] = half_at(block) * float(int(five_bits(block + 2, block + 6, i)) - 16);
      break;
    case DType::q5_1:
      for (size_t i = 0; i < 32; i++)
        out[i] = half_at(block) * float(five_bits(block + 4, block + 8, i)) + half_at(block + 2);
      break;
    case DType::q8_0:
      for (size_t i = 0; i < 32; i++) out[i] = half_at(block) * float(std::to_integer<int8_t>(block[2 + i]));
      break;
    case DType::q4_k:
      return dequantise_parts(block, nullptr, block + 16, out);
    case DType::q5_k:
      return dequantise_parts(block, block + 16, block + 48, out);
    default:
      return dequantise_q6_k(block, out);
  }
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

void dequantise(DType type, const std::byte* row, float* out, size_t n) noexcept {
  switch (type) {
    case DType::f32:
      std::memcpy(out, row, 4 * n);
      break;
    case DType::f16:
      for (size_t i = 0; i < n; i++) out[i] = half_at(row + 2 * i);
      break;
    case DType::bf16:
      for (size_t i = 0; i < n; i++) out[i] = bf16_to_float(load16(row + 2 * i));
      break;
    default: {
      const DTypeInfo& info = dtype_info(type);
      for (size_t i = 0; i < n; i += info.block, row += info.bytes) dequantise_block(type, row, out + i);
    }
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
      case DType::q5_1:
      case DType::q4_k:
      case DType::q5_k:
        finite &= half_is_finite(load16(row)) && half_is_finite(load16(row + 2));
        break;
      case DType::f16:
      case DType::q4_0:
      case DType::q5_0:
      case DType::q8_0:
        finite &= half_is_finite(load16(row));
        break;
      case DType::q6_k:
        finite &= half_is_finite(load16(row + 208));
        break;
    }
  }
  return finite;
}

}  // namespace riftco
