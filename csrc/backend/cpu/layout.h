// How the CPU lays out packed weights and operands. The same for every instruction set but for the panel and tile sizes.
//
//   quantised   panel of 16 outputs: groups of blocks of 32 inputs; a group is a multiple of 64 bytes: the blocks' integers,
//               then their scales, then the scales of all its blocks (struct PanelLayout)
//               bytes (q8_0): 8 lines of 64: byte 4 o + c of line j = output o, input 4 j + c
//               nibbles (the others): 4 lines of 64: byte 4 o + c of line j = output o, low nibble input 8 j + c, high
//               nibble input 8 j + 4 + c; behind them the bits above, of input 4 w + c in byte 4 o + c: q5_0, q5_1, q5_k:
//               one line, bit w; q6_k: two lines, bits 2 (w % 4) of line w / 4. As in the file: without q4_0's - 8
//               scales of a block: 16 f16 d, with a minimum 16 f16 m; q4_k, q5_k: 16 bytes s, 16 bytes m;
//               q6_k: 2 x 16 int8; of a group of q4_k, q5_k, q6_k: 16 f16 d, 16 f16 n (not in q6_k)
//   floats  panel of 16 kFloatVectors outputs: [input][output]; bf16: [pair of inputs][output]{second, first}, which is a
//           32-bit number with the first input above, as products of pairs take it
//
//   float operand    tiles of kFloatRows rows, the last one shorter: [column][row of tile]
//   rounded operand  the same tiles, behind the floats: with products of pairs [pair of columns][row of tile]{second, first}
//                    of bf16, else floats that are such numbers
//   int8 operand     tiles of kDotRows rows: [block]{[row of tile][32] int8, [row of tile] RowScale}; behind the others
#pragma once
#include "backend/cpu/vec.h"
#include "core/kernels.h"

namespace riftco {
namespace {

inline constexpr uint32_t kBlock = 32;  // inputs of a quantised block
inline constexpr uint32_t kPanel = 16;  // outputs of a quantised panel
inline constexpr uint32_t kFloatPanel = 16 * kFloatVectors;
inline constexpr size_t kRowBlock = kBlock + sizeof(RowScale);  // bytes of one row's block in an int8 operand

RIFTCO_INLINE uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
RIFTCO_INLINE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
RIFTCO_INLINE size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
RIFTCO_INLINE size_t round_up(size_t a, size_t b) { return ceil_div(a, b) * b; }

RIFTCO_INLINE constexpr bool is_blocked(DType type) { return type > DType::bf16; }
RIFTCO_INLINE constexpr int high_bits(DType type) {  // of an integer, above its nibble
  if (type == DType::q6_k) return 2;
  return type == DType::q5_0 || type == DType::q5_1 || type == DType::q5_k ? 1 : 0;
}
RIFTCO_INLINE constexpr bool has_parts(DType type) { return type == DType::q4_k || type == DType::q5_k; }
RIFTCO_INLINE constexpr bool has_minimum(DType type) {
  return type == DType::q4_1 || type == DType::q5_1 || has_parts(type);
}

// Calls fn.operator()<type>().
template <class Fn>
RIFTCO_INLINE void with_type(DType type, Fn fn) {
  switch (type) {
    case DType::f32:
      return fn.template operator()<DType::f32>();
    case DType::f16:
      return fn.template operator()<DType::f16>();
    case DType::bf16:
      return fn.template operator()<DType::bf16>();
    case DType::q4_0:
      return fn.template operator()<DType::q4_0>();
    case DType::q4_1:
      return fn.template operator()<DType::q4_1>();
    case DType::q5_0:
      return fn.template operator()<DType::q5_0>();
    case DType::q5_1:
      return fn.template operator()<DType::q5_1>();
    case DType::q8_0:
      return fn.template operator()<DType::q8_0>();
    case DType::q4_k:
      return fn.template operator()<DType::q4_k>();
    case DType::q5_k:
      return fn.template operator()<DType::q5_k>();
    case DType::q6_k:
      return fn.template operator()<DType::q6_k>();
  }
}

// Where a block of 32 inputs and its scales lie in a panel of a quantised type.
struct PanelLayout {
  uint32_t blocks;                // in a group
  uint32_t group;                 // bytes
  uint32_t values;                // bytes of a block's integers
  uint32_t scales, scale_stride;  // from the start of the group; bytes from one block's to the next's
  uint32_t group_scales;

  RIFTCO_INLINE constexpr size_t group_at(size_t b) const { return b / blocks * group; }
  RIFTCO_INLINE constexpr size_t values_at(size_t b) const { return group_at(b) + b % blocks * values; }
  RIFTCO_INLINE constexpr size_t scales_at(size_t b) const {
    return group_at(b) + scales + b % blocks * scale_stride;
  }
};
RIFTCO_INLINE constexpr PanelLayout panel_layout(DType type) {
  switch (type) {
    case DType::q4_0:
      return {2, 576, 256, 512, 32, 0};
    case DType::q4_1:
      return {1, 320, 256, 256, 64, 0};
    case DType::q5_0:
      return {2, 704, 320, 640, 32, 0};
    case DType::q5_1:
      return {1, 384, 320, 320, 64, 0};
    case DType::q4_k:
      return {8, 2368, 256, 2048, 32, 2304};
    case DType::q5_k:
      return {8, 2880, 320, 2560, 32, 2816};
    case DType::q6_k:
      return {8, 3392, 384, 3072, 32, 3328};
    default:  // q8_0
      return {2, 1088, 512, 1024, 32, 0};
  }
}

RIFTCO_INLINE size_t float_size(DType type) { return type == DType::f32 ? 4 : 2; }
RIFTCO_INLINE uint32_t panel_outputs(DType type) { return is_blocked(type) ? kPanel : kFloatPanel; }
RIFTCO_INLINE size_t panel_count(DType type, uint32_t outputs) {
  return ceil_div(outputs, panel_outputs(type));
}
RIFTCO_INLINE size_t panel_bytes(DType type, uint32_t inputs) {
  const PanelLayout layout = panel_layout(type);
  if (is_blocked(type)) return ceil_div(inputs / kBlock, layout.blocks) * layout.group;
  return round_up(inputs, type == DType::bf16 ? 2 : 1) * kFloatPanel * float_size(type);
}

// Of a value in a float panel, in bytes.
template <DType kType>
RIFTCO_INLINE size_t float_at(size_t input, size_t lane) {
  if constexpr (kType == DType::bf16) return (input / 2 * kFloatPanel + lane) * 4 + (input % 2 ? 0 : 2);
  return (input * kFloatPanel + lane) * float_size(kType);
}

// Part `share` of n units.
struct Range {
  size_t begin, end;
};
RIFTCO_INLINE Range part(size_t n, Share share) {
  return {n * share.index / share.count, n * (share.index + 1) / share.count};
}

RIFTCO_INLINE size_t rounded_row_bytes(uint32_t width) {
  return kPairProducts ? round_up(width, 2) * sizeof(BFloat) : width * sizeof(float);
}
RIFTCO_INLINE size_t float_operand_bytes(uint32_t rows, uint32_t width, uint32_t kinds) {
  return kinds & kOperandFloat ? round_up(size_t(rows) * width * sizeof(float), 64) : 0;
}
RIFTCO_INLINE size_t rounded_operand_bytes(uint32_t rows, uint32_t width, uint32_t kinds) {
  return kinds & kOperandRounded ? round_up(rows * rounded_row_bytes(width), 64) : 0;
}
RIFTCO_INLINE const float* float_tile(const Operand& x, uint32_t tile) {
  return reinterpret_cast<const float*>(x.data) + size_t(tile) * kFloatRows * x.width;
}
RIFTCO_INLINE const std::byte* rounded_tile(const Operand& x, uint32_t tile) {
  return x.data + float_operand_bytes(x.rows, x.width, x.kinds) +
         size_t(tile) * kFloatRows * rounded_row_bytes(x.width);
}
RIFTCO_INLINE const uint8_t* int8_tile(const Operand& x, uint32_t tile) {
  const std::byte* base = x.data + float_operand_bytes(x.rows, x.width, x.kinds) +
                          rounded_operand_bytes(x.rows, x.width, x.kinds);
  return reinterpret_cast<const uint8_t*>(base) + size_t(tile) * kDotRows * (x.width / kBlock) * kRowBlock;
}

inline size_t operand_bytes(uint32_t rows, uint32_t width, uint32_t kinds) {
  const size_t int8 = kinds & kOperandInt8 ? size_t(rows) * (width / kBlock) * kRowBlock : 0;
  return float_operand_bytes(rows, width, kinds) + rounded_operand_bytes(rows, width, kinds) +
         round_up(int8, 64);
}

}  // namespace
}  // namespace riftco
