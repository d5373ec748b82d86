// Element types of tensors in files, their block layout, and exact conversion to float.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace riftco {

// A block type packs `block` consecutive elements of a row into `bytes` bytes. Sources: IEEE 754 (f32, f16),
// bfloat16, GGUF (q4_1: f16 d, f16 m, 16 nibble bytes, byte i = elements i and i+16, w = d*q + m;
// q8_0: f16 d, 32 x int8, w = d*q).
enum class DType : uint8_t { f32, f16, bf16, q4_1, q8_0 };

struct DTypeInfo {
  const char* name;  // "f32", ...
  uint32_t block;    // elements per block
  uint32_t bytes;    // bytes per block
};

const DTypeInfo& dtype_info(DType type) noexcept;
inline bool is_quantised(DType type) noexcept { return dtype_info(type).block > 1; }

// Bytes of one row of `elements`; fails (corrupt_data) when they are not a multiple of the block.
size_t row_bytes(DType type, uint64_t elements);

// row[0 .. out.size()) of `type` -> float, equal to the gguf package's dequantiser bit for bit. Size is out.size().
void dequantise(DType type, const std::byte* row, std::span<float> out) noexcept;

float half_to_float(uint16_t half) noexcept;   // exact
uint16_t float_to_half(float value) noexcept;  // round to nearest even; overflow to infinity; NaN stays NaN
inline float bf16_to_float(uint16_t bits) noexcept { return __builtin_bit_cast(float, uint32_t(bits) << 16); }
uint16_t float_to_bf16(float value) noexcept;  // round to nearest even; NaN stays NaN

// True when every stored value and scale of the row is finite (infinities and NaN are refused at load).
bool row_is_finite(DType type, const std::byte* row, uint64_t elements) noexcept;

}  // namespace riftco
