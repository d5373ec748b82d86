// How the CPU lays out packed weights and operands. The same for every instruction set but for the panel and tile sizes.
//
//   q4_1    panel of 16 outputs, its blocks of 32 inputs one after another, 320 bytes each:
//           4 lines of 64: byte 4 o + c of line j = output o, low nibble input 8 j + c, high nibble input 8 j + 4 + c;
//           16 f16 d; 16 f16 m
//   q8_0    the same panel, blocks in pairs of 1088 bytes so that every line is aligned (an odd last one is half a pair):
//           2 x 8 lines of 64: byte 4 o + c of line j = output o, input 4 j + c; 2 x 16 f16 d
//   floats  panel of 16 kFloatVectors outputs: [input][output]
//
//   float operand  tiles of kFloatRows rows, the last one shorter: [column][row of tile]
//   int8 operand   tiles of kDotRows rows: [block]{[row of tile][32] int8, [row of tile] RowScale}; behind the floats
#pragma once
#include "backend/cpu/vec.h"
#include "core/kernels.h"

namespace riftco {
namespace {

inline constexpr uint32_t kBlock = 32;  // inputs of a quantised block
inline constexpr uint32_t kPanel = 16;  // outputs of a quantised panel
inline constexpr uint32_t kFloatPanel = 16 * kFloatVectors;
inline constexpr size_t kQ4Block = 320, kQ8Pair = 1088;
inline constexpr size_t kRowBlock = kBlock + sizeof(RowScale);  // bytes of one row's block in an int8 operand

RIFTCO_INLINE uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
RIFTCO_INLINE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
RIFTCO_INLINE size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
RIFTCO_INLINE size_t round_up(size_t a, size_t b) { return ceil_div(a, b) * b; }

RIFTCO_INLINE bool is_blocked(DType type) { return type == DType::q4_1 || type == DType::q8_0; }
RIFTCO_INLINE size_t float_size(DType type) { return type == DType::f32 ? 4 : 2; }
RIFTCO_INLINE uint32_t panel_outputs(DType type) { return is_blocked(type) ? kPanel : kFloatPanel; }
RIFTCO_INLINE size_t panel_count(DType type, uint32_t outputs) {
  return ceil_div(outputs, panel_outputs(type));
}
RIFTCO_INLINE size_t panel_bytes(DType type, uint32_t inputs) {
  if (type == DType::q4_1) return inputs / kBlock * kQ4Block;
  if (type == DType::q8_0) return ceil_div(inputs / kBlock, 2) * kQ8Pair;
  return size_t(inputs) * kFloatPanel * float_size(type);
}
RIFTCO_INLINE size_t q8_block(size_t b) { return b / 2 * kQ8Pair + b % 2 * 512; }
RIFTCO_INLINE size_t q8_scales(size_t b) { return b / 2 * kQ8Pair + 1024 + b % 2 * 32; }

// Part `share` of n units.
struct Range {
  size_t begin, end;
};
RIFTCO_INLINE Range part(size_t n, Share share) {
  return {n * share.index / share.count, n * (share.index + 1) / share.count};
}

RIFTCO_INLINE size_t float_operand_bytes(uint32_t rows, uint32_t width, uint32_t kinds) {
  return kinds & kOperandFloat ? round_up(size_t(rows) * width * sizeof(float), 64) : 0;
}
RIFTCO_INLINE const float* float_tile(const Operand& x, uint32_t tile) {
  return reinterpret_cast<const float*>(x.data) + size_t(tile) * kFloatRows * x.width;
}
RIFTCO_INLINE const uint8_t* int8_tile(const Operand& x, uint32_t tile) {
  const std::byte* base = x.data + float_operand_bytes(x.rows, x.width, x.kinds);
  return reinterpret_cast<const uint8_t*>(base) + size_t(tile) * kDotRows * (x.width / kBlock) * kRowBlock;
}

size_t operand_bytes(uint32_t rows, uint32_t width, uint32_t kinds) {
  const size_t int8 = kinds & kOperandInt8 ? size_t(rows) * (width / kBlock) * kRowBlock : 0;
  return float_operand_bytes(rows, width, kinds) + round_up(int8, 64);
}

}  // namespace
}  // namespace riftco
