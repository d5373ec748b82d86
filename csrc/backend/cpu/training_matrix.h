// Products of training that inference has no use for: weights the other way round, and gradients of weights.
#pragma once
#include "backend/cpu/linear.h"
#include "core/training_kernels.h"

namespace riftco {
namespace {

// n of 16 lanes: whole vectors, which most are, without a mask.
RIFTCO_INLINE F16 load_some(const float* p, uint32_t n) {
  return n == 16 ? F16::load(p) : F16::load_first(p, n);
}
RIFTCO_INLINE void store_some(F16 v, float* p, uint32_t n) {
  if (n == 16) {
    v.store(p);
  } else {
    v.store_first(p, n);
  }
}

inline constexpr uint32_t kOuterRows =
    128;  // of dy and x worked on at a time: a panel of dy stays in the first-level cache

const float* float_panel_of(const PackedMatrix& m, size_t panel) {
  return reinterpret_cast<const float*>(m.data) + panel * m.inputs * kFloatPanel;
}

void transpose_packed(const TransposeArgs& args, Share share) {
  const PackedMatrix &from = *args.from, &to = *args.to;
  const Range panels = part(panel_count(DType::f32, to.outputs), share);
  for (size_t q = panels.begin; q < panels.end; q++) {
    const uint32_t first_input = uint32_t(q) * kFloatPanel,
                   inputs = smaller(kFloatPanel, from.inputs - first_input);
    float* panel = const_cast<float*>(float_panel_of(to, q));
    for (uint32_t o = 0; o < args.count; o += kFloatPanel) {
      const float* block = float_panel_of(from, (args.first + o) / kFloatPanel) + first_input * kFloatPanel;
      const uint32_t outputs = smaller(kFloatPanel, args.count - o);
      for (uint32_t j = 0; j < outputs; j++)
        for (uint32_t i = 0; i < inputs; i++) panel[(o + j) * kFloatPanel + i] = block[i * kFloatPanel + j];
    }
  }
}

void pack_transposed(const PackTransposedArgs& args, Share share) {
  constexpr uint32_t kRun = 16;  // rows of x at a time: whole lines of the operand
  const Operand& out = args.out;
  const Range runs = part(ceil_div(out.width, kRun), share);
  for (size_t run = runs.begin; run < runs.end; run++)
    for (uint32_t c = 0; c < out.rows; c += kFloatRows) {
      const uint32_t across = smaller(kFloatRows, out.rows - c), first = uint32_t(run) * kRun,
                     count = smaller(kRun, out.width - first);
      float* to = const_cast<float*>(float_tile(out, c / kFloatRows)) + size_t(first) * across;
      const float* from = args.x + first * args.stride + c;
      if (across == kFloatRows) {
        for (uint32_t t = 0; t < count; t++)
          std::memcpy(to + t * kFloatRows, from + t * args.stride, kFloatRows * sizeof(float));
      } else {
        for (uint32_t t = 0; t < count; t++)
          std::memcpy(to + t * across, from + t * args.stride, across * sizeof(float));
      }
    }
}

size_t outer_scratch_bytes() { return kOuterRows * kFloatPanel * sizeof(float); }

// One panel of outputs of `count` rows of dy, with zeros beyond the last output.
void pack_outer_panel(const OuterArgs& args, uint32_t first_output, uint32_t first_row, uint32_t count,
                      float* panel) {
  const uint32_t outputs = smaller(kFloatPanel, args.outputs - first_output);
  for (uint32_t t = 0; t < count; t++) {
    const float* row = args.dy + (first_row + t) * args.stride + first_output;
    float* to = panel + t * kFloatPanel;
    for (uint32_t n = 0; n < kFloatPanel; n += 16)
      load_some(row + n, n < outputs ? smaller(16, outputs - n) : 0).store(to + n);
  }
}

// R inputs and N vectors of outputs over `count` rows.
template <int R, int N>
RIFTCO_INLINE void outer_columns(const float* x, const float* dy, uint32_t count, float* gradient) {
  F16 acc[R][N];
  each(acc, [&](F16& a, size_t r, size_t n) { a = F16::load(gradient + r * kFloatPanel + 16 * n); });
  multiply(
      acc, count, [x](size_t t, int r) { return x[t * R + size_t(r)]; },
      [dy](size_t t, int n) { return F16::load(dy + t * kFloatPanel + 16 * size_t(n)); });
  each(acc, [&](F16 a, size_t r, size_t n) { a.store(gradient + r * kFloatPanel + 16 * n); });
}

template <int R>
[[gnu::noinline]] void outer_tile(const float* x, const float* dy, uint32_t count, float* gradient) {
  if constexpr (R * kFloatVectors <= kAccumulators) {
    outer_columns<R, kFloatVectors>(x, dy, count, gradient);
  } else {
    for (uint32_t n = 0; n < kFloatVectors; n++)
      outer_columns<R, 1>(x, dy + 16 * n, count, gradient + 16 * n);
  }
}

void accumulate_outer(const OuterArgs& args, Share share) {
  const uint32_t inputs = args.x.rows;
  float* panel = reinterpret_cast<float*>(args.scratch);
  const Range panels = part(panel_count(DType::f32, args.outputs), share);
  for (uint32_t first = 0; first < args.x.width; first += kOuterRows) {
    const uint32_t count = smaller(kOuterRows, args.x.width - first);
    for (size_t p = panels.begin; p < panels.end; p++) {
      pack_outer_panel(args, uint32_t(p) * kFloatPanel, first, count, panel);
      float* gradient = args.gradient + p * inputs * kFloatPanel;
      for (uint32_t i = 0; i < inputs; i += kFloatRows) {
        const uint32_t across = smaller(kFloatRows, inputs - i);
        const float* x = float_tile(args.x, i / kFloatRows) + size_t(first) * across;
        with_rows<kFloatRows>(
            across, [&]<int R>() { outer_tile<R>(x, panel, count, gradient + size_t(i) * kFloatPanel); });
      }
    }
  }
}

// Calls fn(first column, columns) for this share of `columns`, 16 at a time.
template <class Fn>
RIFTCO_INLINE void for_each_vector(uint32_t columns, Share share, Fn fn) {
  const Range mine = part(ceil_div(columns, 16), share);
  for (size_t i = mine.begin; i < mine.end; i++)
    fn(uint32_t(i) * 16, smaller(16, columns - uint32_t(i) * 16));
}

void column_sums(const ColumnSumArgs& args, Share share) {
  for_each_vector(args.columns, share, [&](uint32_t c, uint32_t n) {
    F16 sum = load_some(args.sums + c, n);
    for (size_t r = 0; r < args.rows; r++) sum = sum + load_some(args.x + r * args.stride + c, n);
    store_some(sum, args.sums + c, n);
  });
}

// Columns are shared, so that rows of the same token add up in their order.
void scatter_rows(const ScatterArgs& args, Share share) {
  const uint32_t width = args.width;
  const Range columns = part(width, share);
  for (size_t r = 0; r < args.rows; r++) {
    const uint32_t to = args.index[r];
    float* line = args.gradient + size_t(to / kFloatPanel) * width * kFloatPanel + to % kFloatPanel;
    const float* row = args.dx + r * width;
    for (size_t c = columns.begin; c < columns.end; c++) line[c * kFloatPanel] += row[c];
  }
}

}  // namespace
}  // namespace riftco
