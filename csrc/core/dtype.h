// Element types of tensors in files, their block layout, and exact conversion to float.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace riftco {

// A block type packs `block` consecutive elements of a row into `bytes` bytes. Sources: IEEE 754 (f32, f16), bfloat16,
// GGUF. Nibble byte i of 16: elements i (low) and i + 16 (high).
//   q4_0  f16 d; 16 nibble bytes                                    w = d (q - 8)
//   q4_1  f16 d, m; 16 nibble bytes                                 w = d q + m
//   q5_0  f16 d; u32, bit i = fifth bit of element i; nibbles       w = d (q - 16)
//   q5_1  f16 d, m; the same                                        w = d q + m
//   q8_0  f16 d; 32 int8                                            w = d q
// and of 256 elements, in 8 parts p of 32:
//   q4_k  f16 d, n; 12 bytes of 6-bit s[p], m[p]; 128 nibble bytes  w = (d s[p]) q - n m[p]
//         byte 32 g + i = element i of parts 2 g (low) and 2 g + 1 (high)
//   q5_k  f16 d, n; 12 bytes as above; 32 bytes, bit p of byte i = fifth bit of element i of part p; nibbles as above
//   q6_k  128 bytes of low nibbles, 64 of high pairs of bits, 16 int8 s, f16 d       w = (d s[element / 16]) (q - 32)
enum class DType : uint8_t { f32, f16, bf16, q4_1, q8_0, q4_0, q5_0, q5_1, q4_k, q5_k, q6_k };
inline constexpr DType kAllTypes[] = {DType::f32,  DType::f16,  DType::bf16, DType::q4_1,
                                      DType::q8_0, DType::q4_0, DType::q5_0, DType::q5_1,
                                      DType::q4_k, DType::q5_k, DType::q6_k};

struct DTypeInfo {
  const char* name;  // "f32", ...
  uint32_t block;    // elements per block
  uint32_t bytes;    // bytes per block
};

const DTypeInfo& dtype_info(DType type) noexcept;
inline bool is_quantised(DType type) noexcept { return dtype_info(type).block > 1; }

// Bytes of one row of `elements`; fails (corrupt_data) when they are not a multiple of the block.
size_t row_bytes(DType type, uint64_t elements);

// `count` elements of a row, whole blocks -> float, equal to the gguf package's dequantiser bit for bit.
void dequantise(DType type, const std::byte* row, float* out, size_t count) noexcept;
inline void dequantise(DType type, const std::byte* row, std::span<float> out) noexcept {
  dequantise(type, row, out.data(), out.size());
}

float half_to_float(uint16_t half) noexcept;   // exact
uint16_t float_to_half(float value) noexcept;  // round to nearest even; overflow to infinity; NaN stays NaN
inline float bf16_to_float(uint16_t bits) noexcept { return __builtin_bit_cast(float, uint32_t(bits) << 16); }
uint16_t float_to_bf16(float value) noexcept;  // round to nearest even; NaN stays NaN

// True when every stored value and scale of the row is finite (infinities and NaN are refused at load).
bool row_is_finite(DType type, const std::byte* row, uint64_t elements) noexcept;

}  // namespace riftco
