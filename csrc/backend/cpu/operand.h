// Activations on their way into an operand: as floats, as int8 blocks, or both; and the kernels that make them.
#pragma once
#include "backend/cpu/layout.h"
#include "core/math_formulas.h"

namespace riftco {
namespace {

inline constexpr float kTiny = 0x1p-100f;  // a block below this is zero

RIFTCO_INLINE void quantise_block(F16 low, F16 high, int8_t* q, RowScale* out) {
  const float largest = largest_abs(low, high);
  if (!(largest < __builtin_inff())) {  // NaN or infinite: the scale says so
    std::memset(q, 0, kBlock);
    *out = {__builtin_nanf(""), __builtin_nanf(""), 0, 0};
  } else if (largest < kTiny) {
    std::memset(q, 0, kBlock);
    *out = {0, 0, 0, 0};
  } else {
    const F16 inverse = F16::splat(127.0f / largest);
    const float scale = largest * (1.0f / 127.0f);
    const BlockSums sums = store_int8(low * inverse, high * inverse, q);
    const int32_t total = sums.low + sums.high;
    *out = {scale, scale * float(total), total, sums.low};
  }
}

// Writes 32 columns at a time, `low` and `high`; at the right edge the columns beyond the width are ignored.
class OperandWriter {
 public:
  explicit OperandWriter(const Operand& out) : out_(out) {}

  void put(uint32_t row, uint32_t column, F16 low, F16 high) const {
    if (out_.kinds & kOperandFloat) put_floats(row, column, low, high);
    if (out_.kinds & kOperandRounded) put_rounded(row, column, low, high);
    if (out_.kinds & kOperandInt8) put_int8(row, column, low, high);
  }

 private:
  // Value i from `column` on is value(i), of so many columns each.
  template <class T, class Value>
  void scatter(const T* tile, uint32_t row, uint32_t column, uint32_t columns, Value value) const {
    const uint32_t first = row / kFloatRows * kFloatRows, rows = smaller(kFloatRows, out_.rows - first);
    T* to = const_cast<T*>(tile) + size_t(column / columns) * rows + (row - first);
    const size_t n = ceil_div(smaller(kBlock, out_.width - column), columns);
    if (rows == 1) {
      for (size_t i = 0; i < n; i++) to[i] = value(i);
    } else {
      for (size_t i = 0; i < n; i++) to[i * rows] = value(i);
    }
  }
  void put_floats(uint32_t row, uint32_t column, F16 low, F16 high) const {
    alignas(64) float values[kBlock];
    low.store(values);
    high.store(values + 16);
    scatter(float_tile(out_, row / kFloatRows), row, column, 1, [&](size_t i) { return values[i]; });
  }
  void put_rounded(uint32_t row, uint32_t column, F16 low, F16 high) const {
    alignas(64) BFloat values[kBlock];
    store16(low, values);
    store16(high, values + 16);
    const auto wide = [&](size_t i) { return uint32_t(values[i].bits) << 16; };
    const std::byte* tile = rounded_tile(out_, row / kFloatRows);
    if constexpr (kPairProducts) {
      scatter(reinterpret_cast<const Pair*>(tile), row, column, 2,
              [&](size_t i) { return Pair{wide(2 * i) | values[2 * i + 1].bits}; });
    } else {
      scatter(reinterpret_cast<const float*>(tile), row, column, 1,
              [&](size_t i) { return __builtin_bit_cast(float, wide(i)); });
    }
  }
  void put_int8(uint32_t row, uint32_t column, F16 low, F16 high) const {
    const uint32_t tile = row / kDotRows, rows = smaller(kDotRows, out_.rows - tile * kDotRows),
                   i = row % kDotRows;
    uint8_t* block = const_cast<uint8_t*>(int8_tile(out_, tile)) + size_t(column / kBlock) * rows * kRowBlock;
    quantise_block(low, high, reinterpret_cast<int8_t*>(block) + i * kBlock,
                   reinterpret_cast<RowScale*>(block + rows * kBlock) + i);
  }

  const Operand& out_;
};

// Sixteen values from column c of a row of `width`; what lies beyond is 0.
RIFTCO_INLINE F16 load_columns(const float* row, uint32_t c, uint32_t width) {
  if (c + 16 <= width) return F16::load(row + c);
  return c < width ? F16::load_first(row + c, width - c) : F16::splat(0);
}

// Calls value(row, column) -> F16 for this share of the operand; columns come in pairs of 16.
template <class Value>
void fill_operand(const Operand& out, Share share, Value value) {
  const OperandWriter writer(out);
  const size_t chunks = ceil_div(out.width, kBlock);
  const Range units = part(out.rows * chunks, share);
  for (size_t u = units.begin; u < units.end; u++) {
    const uint32_t row = uint32_t(u / chunks), column = uint32_t(u % chunks) * kBlock;
    const F16 low = value(row, column), high = value(row, column + 16);
    writer.put(row, column, low, high);
  }
}

void pack_operand(const PackArgs& args, Share share) {
  const uint32_t width = args.out.width;
  const size_t stride = args.stride ? args.stride : width;
  const F16 scale = F16::splat(args.scale);
  fill_operand(args.out, share, [&](uint32_t row, uint32_t column) {
    return load_columns(args.x + row * stride, column, width) * scale;
  });
}

void activate(const ActivateArgs& args, Share share) {
  const uint32_t width = args.out.width;
  const auto fill = [&](auto function) {
    fill_operand(args.out, share,
                 [&](uint32_t row, uint32_t column) { return function(size_t(row) * width, column); });
  };
  switch (args.kind) {
    case Activation::gelu_erf:
      return fill(
          [&](size_t at, uint32_t c) { return formulas::gelu_erf(load_columns(args.up + at, c, width)); });
    case Activation::gelu_tanh:
      return fill(
          [&](size_t at, uint32_t c) { return formulas::gelu_tanh(load_columns(args.up + at, c, width)); });
    case Activation::silu_gated:
      return fill([&](size_t at, uint32_t c) {
        return formulas::silu(load_columns(args.gate + at, c, width)) * load_columns(args.up + at, c, width);
      });
  }
}

}  // namespace
}  // namespace riftco
