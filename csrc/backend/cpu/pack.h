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

// The integers of 32 inputs: byte c of word j is input 4 j + c.
struct Words {
  uint32_t v[8];
};

inline constexpr uint32_t kLow = 0x0F0F0F0F, kOnes = 0x01010101;

// Four bits as the lowest bits of four bytes, and back.
RIFTCO_INLINE uint32_t spread_bits(uint32_t bits) { return (bits & 15) * 0x00204081 & kOnes; }
RIFTCO_INLINE uint32_t join_bits(uint32_t w) {
  return (w & 1) | (w >> 7 & 2) | (w >> 14 & 4) | (w >> 21 & 8);
}

// Where the parts of a file block lie; part: its 32 inputs of 256.
struct FileBlock {
  uint32_t nibbles, high;  // offsets; high: the bits above the nibbles
};
RIFTCO_INLINE FileBlock file_block(DType type) {
  switch (type) {
    case DType::q4_0:
      return {2, 0};
    case DType::q4_1:
      return {4, 0};
    case DType::q5_0:
      return {6, 2};
    case DType::q5_1:
      return {8, 4};
    case DType::q4_k:
      return {16, 0};
    case DType::q5_k:
      return {48, 16};
    default:  // q6_k
      return {0, 128};
  }
}

RIFTCO_INLINE Words load_words(DType type, const std::byte* file, uint32_t part) {
  Words words;
  const FileBlock at = file_block(type);
  for (uint32_t j = 0; j < 8; j++) {
    uint32_t& w = words.v[j];
    if (type == DType::q8_0) {
      w = load32(file + 2 + 4 * j);
    } else if (has_parts(type)) {
      w = load32(file + at.nibbles + 32 * (part / 2) + 4 * j) >> 4 * (part % 2) & kLow;
      if (type == DType::q5_k) w |= (load32(file + at.high + 4 * j) >> part & kOnes) << 4;
    } else if (type == DType::q6_k) {
      w = load32(file + 64 * (part / 4) + 32 * (part % 2) + 4 * j) >> 4 * (part / 2 % 2) & kLow;
      w |= (load32(file + at.high + 32 * (part / 4) + 4 * j) >> 2 * (part % 4) & 3 * kOnes) << 4;
    } else {
      w = load32(file + at.nibbles + 4 * (j % 4)) >> 4 * (j / 4) & kLow;
      if (at.high) w |= spread_bits(load32(file + at.high) >> 4 * j) << 4;
    }
  }
  return words;
}

RIFTCO_INLINE void or32(std::byte* p, uint32_t v) { store32(p, load32(p) | v); }

// Into a file block whose integers are zero.
void store_words(DType type, const Words& words, std::byte* file, uint32_t part) {
  const FileBlock at = file_block(type);
  for (uint32_t j = 0; j < 8; j++) {
    const uint32_t w = words.v[j], low = w & kLow, high = w >> 4 & 3 * kOnes;
    if (type == DType::q8_0) {
      store32(file + 2 + 4 * j, w);
    } else if (has_parts(type)) {
      or32(file + at.nibbles + 32 * (part / 2) + 4 * j, low << 4 * (part % 2));
      if (type == DType::q5_k) or32(file + at.high + 4 * j, high << part);
    } else if (type == DType::q6_k) {
      or32(file + 64 * (part / 4) + 32 * (part % 2) + 4 * j, low << 4 * (part / 2 % 2));
      or32(file + at.high + 32 * (part / 4) + 4 * j, high << 2 * (part % 4));
    } else {
      or32(file + at.nibbles + 4 * (j % 4), low << 4 * (j / 4));
      if (at.high) or32(file + at.high, join_bits(high) << 4 * j);
    }
  }
}

// Where the bits above the nibble of word j lie in a block's values.
struct HighPlace {
  uint32_t line, shift;
};
RIFTCO_INLINE HighPlace high_place(int bits, uint32_t j) {
  return bits == 2 ? HighPlace{j / 4, 2 * (j % 4)} : HighPlace{0, j};
}

RIFTCO_INLINE void put_words(DType type, const Words& words, std::byte* values, uint32_t lane) {
  std::byte* const to = values + 4 * lane;
  if (type == DType::q8_0) {
    for (uint32_t j = 0; j < 8; j++) store32(to + 64 * j, words.v[j]);
    return;
  }
  for (uint32_t j = 0; j < 4; j++)
    store32(to + 64 * j, (words.v[2 * j] & kLow) | (words.v[2 * j + 1] & kLow) << 4);
  const int bits = high_bits(type);
  uint32_t lines[2] = {0, 0};
  for (uint32_t j = 0; j < 8; j++) {
    const HighPlace at = high_place(bits, j);
    lines[at.line] |= (words.v[j] >> 4 & 3 * kOnes) << at.shift;
  }
  for (int line = 0; line < bits; line++) store32(to + 256 + 64 * line, lines[line]);
}
Words get_words(DType type, const std::byte* values, uint32_t lane) {
  const std::byte* const from = values + 4 * lane;
  const int bits = high_bits(type);
  Words words;
  for (uint32_t j = 0; j < 8; j++) {
    if (type == DType::q8_0) {
      words.v[j] = load32(from + 64 * j);
      continue;
    }
    words.v[j] = load32(from + 64 * (j / 2)) >> 4 * (j % 2) & kLow;
    if (bits == 0) continue;
    const HighPlace at = high_place(bits, j);
    const uint32_t mask = bits == 2 ? 3 * kOnes : kOnes;
    words.v[j] |= (load32(from + 256 + 64 * at.line) >> at.shift & mask) << 4;
  }
  return words;
}

RIFTCO_INLINE unsigned load8(const std::byte* p) { return unsigned(*p); }
RIFTCO_INLINE void or8(std::byte* p, unsigned v) { *p = std::byte(unsigned(*p) | v); }

// The six-bit numbers of q4_k and q5_k: 16 in 12 bytes, s[0..7], m[0..7].
RIFTCO_INLINE unsigned load_six(const std::byte* s, uint32_t part, bool minimum) {
  if (part < 4) return load8(s + part + (minimum ? 4 : 0)) & 63;
  return (minimum ? load8(s + part + 4) >> 4 : load8(s + part + 4) & 15) |
         load8(s + part - (minimum ? 0 : 4)) >> 6 << 4;
}
// Into 12 bytes that are zero.
void store_six(std::byte* s, uint32_t part, bool minimum, unsigned v) {
  if (part < 4) {
    or8(s + part + (minimum ? 4 : 0), v);
  } else {
    or8(s + part + 4, minimum ? (v & 15u) << 4 : v & 15u);
    or8(s + part - (minimum ? 0 : 4), v >> 4u << 6);
  }
}

// The scales of one lane of block b of a panel, from and to the file block that it lies in.
struct LaneScales {
  std::byte *block, *group;
};
RIFTCO_INLINE LaneScales lane_scales(DType type, std::byte* panel, size_t b, uint32_t lane) {
  const PanelLayout layout = panel_layout(type);
  const uint32_t size = layout.group_scales ? 1 : 2;  // bytes of a block's scale
  return {panel + layout.scales_at(b) + size * lane,
          panel + layout.group_at(b) + layout.group_scales + 2 * lane};
}

RIFTCO_INLINE void pack_scales(DType type, const std::byte* file, std::byte* panel, size_t b, uint32_t lane) {
  const LaneScales to = lane_scales(type, panel, b, lane);
  const uint32_t part = uint32_t(b % 8);
  if (has_parts(type)) {
    to.block[0] = std::byte(load_six(file + 4, part, false));
    to.block[16] = std::byte(load_six(file + 4, part, true));
    std::memcpy(to.group, file, 2);
    std::memcpy(to.group + 32, file + 2, 2);
  } else if (type == DType::q6_k) {
    to.block[0] = file[192 + 2 * part];
    to.block[16] = file[193 + 2 * part];
    std::memcpy(to.group, file + 208, 2);
  } else {
    std::memcpy(to.block, file, 2);
    if (has_minimum(type)) std::memcpy(to.block + 32, file + 2, 2);
  }
}
void unpack_scales(DType type, std::byte* panel, size_t b, uint32_t lane, std::byte* file) {
  const LaneScales from = lane_scales(type, panel, b, lane);
  const uint32_t part = uint32_t(b % 8);
  if (has_parts(type)) {
    store_six(file + 4, part, false, load8(from.block));
    store_six(file + 4, part, true, load8(from.block + 16));
    std::memcpy(file, from.group, 2);
    std::memcpy(file + 2, from.group + 32, 2);
  } else if (type == DType::q6_k) {
    file[192 + 2 * part] = from.block[0];
    file[193 + 2 * part] = from.block[16];
    std::memcpy(file + 208, from.group, 2);
  } else {
    std::memcpy(file, from.block, 2);
    if (has_minimum(type)) std::memcpy(file + 2, from.block + 32, 2);
  }
}

// File block i of a row from its panel.
void unpack_block(DType type, const DTypeInfo& info, std::byte* panel, size_t i, uint32_t lane,
                  std::byte* file) {
  const uint32_t parts = info.block / kBlock;
  std::memset(file, 0, info.bytes);
  for (uint32_t part = 0; part < parts; part++) {
    const size_t b = i * parts + part;
    store_words(type, get_words(type, panel + panel_layout(type).values_at(b), lane), file, part);
    unpack_scales(type, panel, b, lane, file);
  }
}

inline constexpr size_t kMostFileBlock = 210, kMostBlock = 256;  // bytes and elements of a q6_k block

// One row as visited by the functions below: its panel and its lane in it.
struct PanelRow {
  std::byte* panel;
  uint32_t lane;
};
RIFTCO_INLINE PanelRow panel_row(const PackedMatrix& m, uint32_t row) {
  const uint32_t outputs = panel_outputs(m.type);
  return {m.data + row / outputs * panel_bytes(m.type, m.inputs), row % outputs};
}

template <DType kType>
void pack_floats(const PanelRow& to, uint32_t inputs, const std::byte* file) {
  const size_t size = float_size(kType);
  for (size_t k = 0; k < inputs; k++)
    std::memcpy(to.panel + float_at<kType>(k, to.lane), file + k * size, size);
}
template <DType kType>
void unpack_floats(const PanelRow& from, uint32_t inputs, std::byte* file) {
  const size_t size = float_size(kType);
  for (size_t k = 0; k < inputs; k++)
    std::memcpy(file + k * size, from.panel + float_at<kType>(k, from.lane), size);
}

// The type is a constant here, so that everything above it folds.
template <DType kType>
void pack_blocks(const PanelRow& to, uint32_t inputs, const std::byte* file) {
  constexpr uint32_t kParts = kType >= DType::q4_k ? 8 : 1;  // blocks of 32 inputs in a block of the file
  const size_t bytes = dtype_info(kType).bytes;
  for (size_t b = 0; b < inputs / kBlock; b++) {
    const std::byte* block = file + b / kParts * bytes;
    put_words(kType, load_words(kType, block, uint32_t(b % kParts)),
              to.panel + panel_layout(kType).values_at(b), to.lane);
    pack_scales(kType, block, to.panel, b, to.lane);
  }
}

void pack_row(const PackedMatrix& m, const PanelRow& to, const std::byte* file) {
  with_type(m.type, [&]<DType kType>() {
    if constexpr (is_blocked(kType)) {
      pack_blocks<kType>(to, m.inputs, file);
    } else {
      pack_floats<kType>(to, m.inputs, file);
    }
  });
}
void unpack_row(const PackedMatrix& m, const PanelRow& from, std::byte* file) {
  if (m.type == DType::f32) return unpack_floats<DType::f32>(from, m.inputs, file);
  if (m.type == DType::f16) return unpack_floats<DType::f16>(from, m.inputs, file);
  if (m.type == DType::bf16) return unpack_floats<DType::bf16>(from, m.inputs, file);
  const DTypeInfo& info = dtype_info(m.type);
  for (size_t i = 0; i < m.inputs / info.block; i++)
    unpack_block(m.type, info, from.panel, i, from.lane, file + i * info.bytes);
}

RIFTCO_INLINE size_t file_row_bytes(const PackedMatrix& m) {
  const DTypeInfo& info = dtype_info(m.type);
  return size_t(m.inputs) / info.block * info.bytes;
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
  const auto at = [&]<DType kType>(size_t k) { return from.panel + float_at<kType>(k, from.lane); };
  for (size_t k = 0; !is_blocked(m.type) && k < m.inputs; k++) {
    if (m.type == DType::f32)
      put(k, __builtin_bit_cast(float, load32(at.template operator()<DType::f32>(k))));
    if (m.type == DType::f16) put(k, half_to_float(load_u16(at.template operator()<DType::f16>(k))));
    if (m.type == DType::bf16)
      put(k, __builtin_bit_cast(float, uint32_t(load_u16(at.template operator()<DType::bf16>(k))) << 16));
  }
  if (!is_blocked(m.type)) return;
  const DTypeInfo& info = dtype_info(m.type);
  for (size_t i = 0; i < m.inputs / info.block; i++) {
    std::byte file[kMostFileBlock];
    float values[kMostBlock];
    unpack_block(m.type, info, from.panel, i, from.lane, file);
    dequantise(m.type, file, values, info.block);
    for (size_t k = 0; k < info.block; k++) put(i * info.block + k, values[k]);
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
