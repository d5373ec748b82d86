// Weights between file rows and panels, and single rows of an embedding out of its panels.
#pragma once
#include "backend/cpu/layout.h"
#include "core/dtype.h"

namespace riftco {
namespace {

size_t packed_bytes(DType type, uint32_t outputs, uint32_t inputs) {
  return round_up(panel_count(type, outputs) * panel_bytes(type, inputs), 64);
}

RIFTCO_INLINE uint32_t load32(const void* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}
RIFTCO_INLINE uint16_t load_u16(const void* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}
RIFTCO_INLINE void store32(void* p, uint32_t v) { std::memcpy(p, &v, 4); }

inline constexpr uint32_t kLow = 0x0F0F0F0F, kHigh = 0xF0F0F0F0;

// File byte i holds inputs i (low) and i + 16 (high): bytes 0-7 make lines 0 and 2, bytes 8-15 lines 1 and 3.
void pack_q4_block(const std::byte* file, std::byte* block, uint32_t lane) {
  for (uint32_t half = 0; half < 2; half++) {
    const uint32_t a = load32(file + 4 + 8 * half), b = load32(file + 8 + 8 * half);
    store32(block + 64 * half + 4 * lane, (a & kLow) | (b & kLow) << 4);
    store32(block + 64 * (half + 2) + 4 * lane, (a >> 4 & kLow) | (b & kHigh));
  }
  std::memcpy(block + 256 + 2 * lane, file, 2);
  std::memcpy(block + 288 + 2 * lane, file + 2, 2);
}
void unpack_q4_block(const std::byte* block, uint32_t lane, std::byte* file) {
  for (uint32_t half = 0; half < 2; half++) {
    const uint32_t low = load32(block + 64 * half + 4 * lane),
                   high = load32(block + 64 * (half + 2) + 4 * lane);
    store32(file + 4 + 8 * half, (low & kLow) | (high & kLow) << 4);
    store32(file + 8 + 8 * half, (low >> 4 & kLow) | (high & kHigh));
  }
  std::memcpy(file, block + 256 + 2 * lane, 2);
  std::memcpy(file + 2, block + 288 + 2 * lane, 2);
}

// One row as visited by the functions below: its panel and its lane in it.
struct PanelRow {
  std::byte* panel;
  uint32_t lane;
};
RIFTCO_INLINE PanelRow panel_row(const PackedMatrix& m, uint32_t row) {
  const uint32_t outputs = panel_outputs(m.type);
  return {m.data + row / outputs * panel_bytes(m.type, m.inputs), row % outputs};
}

template <size_t kSize>
void pack_floats(const PanelRow& to, uint32_t inputs, const std::byte* file) {
  for (size_t k = 0; k < inputs; k++)
    std::memcpy(to.panel + (k * kFloatPanel + to.lane) * kSize, file + k * kSize, kSize);
}
template <size_t kSize>
void unpack_floats(const PanelRow& from, uint32_t inputs, std::byte* file) {
  for (size_t k = 0; k < inputs; k++)
    std::memcpy(file + k * kSize, from.panel + (k * kFloatPanel + from.lane) * kSize, kSize);
}

void pack_row(const PackedMatrix& m, const PanelRow& to, const std::byte* file) {
  if (m.type == DType::f32) return pack_floats<4>(to, m.inputs, file);
  if (m.type == DType::f16 || m.type == DType::bf16) return pack_floats<2>(to, m.inputs, file);
  for (size_t b = 0; b < m.inputs / kBlock; b++) {
    if (m.type == DType::q4_1) {
      pack_q4_block(file + 20 * b, to.panel + kQ4Block * b, to.lane);
    } else {
      for (size_t j = 0; j < 8; j++)
        std::memcpy(to.panel + q8_block(b) + 64 * j + 4 * to.lane, file + 34 * b + 2 + 4 * j, 4);
      std::memcpy(to.panel + q8_scales(b) + 2 * to.lane, file + 34 * b, 2);
    }
  }
}
void unpack_row(const PackedMatrix& m, const PanelRow& from, std::byte* file) {
  if (m.type == DType::f32) return unpack_floats<4>(from, m.inputs, file);
  if (m.type == DType::f16 || m.type == DType::bf16) return unpack_floats<2>(from, m.inputs, file);
  for (size_t b = 0; b < m.inputs / kBlock; b++) {
    if (m.type == DType::q4_1) {
      unpack_q4_block(from.panel + kQ4Block * b, from.lane, file + 20 * b);
    } else {
      for (size_t j = 0; j < 8; j++)
        std::memcpy(file + 34 * b + 2 + 4 * j, from.panel + q8_block(b) + 64 * j + 4 * from.lane, 4);
      std::memcpy(file + 34 * b, from.panel + q8_scales(b) + 2 * from.lane, 2);
    }
  }
}

RIFTCO_INLINE size_t file_row_bytes(const PackedMatrix& m) {
  if (m.type == DType::q4_1) return m.inputs / kBlock * 20;
  if (m.type == DType::q8_0) return m.inputs / kBlock * 34;
  return m.inputs * float_size(m.type);
}

void pack_rows(const PackedMatrix& matrix, uint32_t first_row, uint32_t rows, const std::byte* file_rows) {
  const size_t bytes = file_row_bytes(matrix);
  for (uint32_t r = 0; r < rows; r++)
    pack_row(matrix, panel_row(matrix, first_row + r), file_rows + r * bytes);
}
void unpack_rows(const PackedMatrix& matrix, uint32_t first_row, uint32_t rows, std::byte* file_rows) {
  const size_t bytes = file_row_bytes(matrix);
  for (uint32_t r = 0; r < rows; r++)
    unpack_row(matrix, panel_row(matrix, first_row + r), file_rows + r * bytes);
}

// x = (or +=) row `row`: the values that dequantise() gives for its file row.
template <bool kAdd>
void read_row(const PackedMatrix& m, uint32_t row, float* x) {
  const PanelRow from = panel_row(m, row);
  const auto put = [x](size_t k, float v) { x[k] = kAdd ? x[k] + v : v; };
  for (size_t k = 0; !is_blocked(m.type) && k < m.inputs; k++) {
    const std::byte* p = from.panel + (k * kFloatPanel + from.lane) * float_size(m.type);
    if (m.type == DType::f32) put(k, __builtin_bit_cast(float, load32(p)));
    if (m.type == DType::f16) put(k, half_to_float(load_u16(p)));
    if (m.type == DType::bf16) put(k, __builtin_bit_cast(float, uint32_t(load_u16(p)) << 16));
  }
  for (size_t b = 0; is_blocked(m.type) && b < m.inputs / kBlock; b++) {
    if (m.type == DType::q4_1) {
      const std::byte* block = from.panel + kQ4Block * b;
      const float d = half_to_float(load_u16(block + 256 + 2 * from.lane));
      const float low = half_to_float(load_u16(block + 288 + 2 * from.lane));
      for (size_t k = 0; k < kBlock; k++) {
        const unsigned byte = unsigned(block[k / 8 * 64 + 4 * from.lane + k % 4]);
        put(kBlock * b + k, d * float(k % 8 < 4 ? byte & 15 : byte >> 4) + low);
      }
    } else {
      const float d = half_to_float(load_u16(from.panel + q8_scales(b) + 2 * from.lane));
      for (size_t k = 0; k < kBlock; k++)
        put(kBlock * b + k, d * float(int8_t(from.panel[q8_block(b) + k / 4 * 64 + 4 * from.lane + k % 4])));
    }
  }
}

void gather(const GatherArgs& args, Share share) {
  const Range rows = part(args.rows, share);
  for (size_t r = rows.begin; r < rows.end; r++) {
    float* x = args.x + r * args.table->inputs;
    read_row<false>(*args.table, args.tokens[r], x);
    if (args.positions_table) read_row<true>(*args.positions_table, args.positions[r], x);
  }
}

}  // namespace
}  // namespace riftco
