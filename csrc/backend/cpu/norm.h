// Layer norm and rms norm, straight into an operand.
#pragma once
#include "backend/cpu/operand.h"

namespace riftco {
namespace {

// Sum over a row of value(x, lanes): 16 virtual lanes, the missing ones of a short last group stay as they are.
template <class Add>
RIFTCO_INLINE float row_sum(const float* x, uint32_t width, Add add) {
  F16 total = F16::splat(0);
  uint32_t c = 0;
  for (; c + 16 <= width; c += 16) total = add(F16::load(x + c), total);
  if (c < width) total = select(first_lanes(width - c), add(F16::load_first(x + c, width - c), total), total);
  return sum(total);
}

struct RowNorm {
  float mean, inverse;
};

RowNorm measure_row(NormKind kind, float epsilon, const float* x, uint32_t width) {
  const float count = float(width);
  float mean = 0;
  if (kind == NormKind::layer) mean = row_sum(x, width, [](F16 v, F16 total) { return total + v; }) / count;
  const F16 centre = F16::splat(mean);
  const float squares = kind == NormKind::layer
                            ? row_sum(x, width,
                                      [&](F16 v, F16 total) {
                                        const F16 d = v - centre;
                                        return fma(d, d, total);
                                      })
                            : row_sum(x, width, [](F16 v, F16 total) { return fma(v, v, total); });
  return {mean, 1.0f / __builtin_sqrtf(squares / count + epsilon)};
}

// x = rms(x) * weight, in place.
void normalise_head(float* x, const float* weight, uint32_t width, float epsilon) {
  const F16 inverse = F16::splat(measure_row(NormKind::rms, epsilon, x, width).inverse);
  for (uint32_t d = 0; d < width; d += 16) {
    const uint32_t n = smaller(16, width - d);
    (F16::load_first(x + d, n) * inverse * F16::load_first(weight + d, n)).store_first(x + d, n);
  }
}

// A row's share of columns may be cut anywhere: every worker measures the rows it touches for itself.
void norm(const NormArgs& args, Share share) {
  const uint32_t width = args.out.width;
  uint32_t measured = UINT32_MAX;
  RowNorm row_norm = {0, 0};
  fill_operand(args.out, share, [&](uint32_t row, uint32_t column) {
    const float* x = args.x + size_t(args.row_index ? args.row_index[row] : row) * width;
    if (row != measured) row_norm = measure_row(args.kind, args.epsilon, x, width), measured = row;
    F16 v = load_columns(x, column, width);
    if (args.kind == NormKind::layer) v = v - F16::splat(row_norm.mean);
    v = v * F16::splat(row_norm.inverse) * load_columns(args.weights.weight, column, width);
    return args.weights.bias ? v + load_columns(args.weights.bias, column, width) : v;
  });
}

}  // namespace
}  // namespace riftco
