// Matrix products: panels of packed weights times tiles of operand rows.
//
// Order: blocks of rows (their operand stays in the second-level cache), panels (quantised ones stay in the first, float ones
// are cut into stretches of inputs that stay in the second), tiles of rows. One accumulator per row and output, its chain runs
// over the inputs in order: neither tiles nor stretches nor shares change a bit.
#pragma once
#include <concepts>
#include <type_traits>

#include "backend/cpu/layout.h"

namespace riftco {
namespace {

inline constexpr uint32_t kCacheRows =
    120;  // rows of an operand worked on at a time; a multiple of every tile

// Calls fn with a compile-time number of rows 1 .. kMost.
template <int kMost, class Fn>
RIFTCO_INLINE void with_rows(uint32_t rows, Fn fn) {
  if constexpr (kMost > 1)
    if (rows < kMost) return with_rows<kMost - 1>(rows, fn);
  fn.template operator()<kMost>();
}

// Calls fn(acc[r][n], r, n) for all of them.
template <int R, int N, class Fn>
RIFTCO_INLINE void each(F16 (&acc)[R][N], Fn fn) {
  RIFTCO_UNROLL
  for (int r = 0; r < R; r++) {
    RIFTCO_UNROLL
    for (int n = 0; n < N; n++) fn(acc[r][n], size_t(r), size_t(n));
  }
}

// acc[r][n] = fma(a(t, r), b(t, n), acc[r][n]) for t = 0, 1, ...
template <int R, int N, class A, class B>
RIFTCO_INLINE void multiply(F16 (&acc)[R][N], size_t steps, A a, B b) {
  for (size_t t = 0; t < steps; t++) {
    F16 w[N];
    RIFTCO_UNROLL
    for (int n = 0; n < N; n++) w[n] = b(t, n);
    RIFTCO_UNROLL
    for (int r = 0; r < R; r++) {
      const F16 x = F16::splat(a(t, r));
      RIFTCO_UNROLL
      for (int n = 0; n < N; n++) acc[r][n] = fma(x, w[n], acc[r][n]);
    }
  }
}

// Where the results of one matrix go.
struct Output {
  const float* bias;
  float* out;
  size_t stride;
  uint32_t outputs;
  bool accumulate;

  RIFTCO_INLINE void put(size_t row, uint32_t column, F16 v) const {
    if (column >= outputs) return;
    float* to = out + row * stride + column;
    const uint32_t n = outputs - column;
    if (bias) v = v + (n < 16 ? F16::load_first(bias + column, n) : F16::load(bias + column));
    if (accumulate) v = (n < 16 ? F16::load_first(to, n) : F16::load(to)) + v;
    if (n < 16) {
      v.store_first(to, n);
    } else {
      v.store(to);
    }
  }
};

RIFTCO_INLINE F16 load_halves(const uint8_t* p) { return load16(reinterpret_cast<const Half*>(p)); }

// The integer products of a block, of q6_k of one half of it.
template <DType kType, int R>
RIFTCO_INLINE void block_dot(const uint8_t* w, int half, const int8_t* x, const RowScale* scale,
                             I16 (&dot)[R]) {
  if constexpr (kType == DType::q8_0) {
    dot_q8<R>(reinterpret_cast<const int8_t*>(w), x, scale, dot);
  } else if constexpr (high_bits(kType) == 0) {
    dot_q4<R>(w, x, dot);
  } else if constexpr (high_bits(kType) == 1) {
    dot_wide<R, 1, 0, 8>(w, x, dot);
  } else if (half == 0) {
    dot_wide<R, 2, 0, 4>(w, x, dot);
  } else {
    dot_wide<R, 2, 4, 4>(w, x, dot);
  }
  RIFTCO_UNROLL
  for (int r = 0; r < R; r++) {  // what the stored integers have too much
    if (kType == DType::q4_0) dot[r] = minus(dot[r], 8 * scale[r].sum);
    if (kType == DType::q5_0) dot[r] = minus(dot[r], 16 * scale[r].sum);
    if (kType == DType::q6_k)
      dot[r] = minus(dot[r], 32 * (half ? scale[r].sum - scale[r].low_sum : scale[r].low_sum));
  }
}

// What a tile fetches into the second-level cache while it computes, `step` bytes at a time: its share of the next panel or
// stretch, without which memory rests while several rows are multiplied. A single row of a quantised matrix fetches what lies
// kFar bytes on; of floats it keeps up with memory by itself.
inline constexpr size_t kFar = 2560;
struct Ahead {
  const uint8_t* at;
  size_t step;

  RIFTCO_INLINE void fetch() {
    for (size_t i = 0; i < step; i += 64) __builtin_prefetch(at + i, 0, 2);
    at += step;
  }
};

// Tiles that fetch `bytes` between them, each in so many steps.
struct SharedFetch {
  size_t step, steps;

  RIFTCO_INLINE SharedFetch(size_t bytes, size_t tiles, size_t of_a_tile)
      : step(bytes / (tiles * of_a_tile)), steps(of_a_tile) {}
  RIFTCO_INLINE Ahead part(const void* from, size_t tile) const {
    return {static_cast<const uint8_t*>(from) + tile * step * steps, step};
  }
};

template <DType kType, int R>
[[gnu::noinline]] void blocked_tile(const uint8_t* panel, const uint8_t* x, uint32_t blocks, const Output& to,
                                    size_t row, uint32_t column, Ahead ahead) {
  constexpr PanelLayout kLayout = panel_layout(kType);
  constexpr int kHalves = kType == DType::q6_k ? 2 : 1;
  F16 acc[R];
  RIFTCO_UNROLL
  for (int r = 0; r < R; r++) acc[r] = F16::splat(0);
  for (uint32_t b = 0; b < blocks; b++, x += R * kRowBlock) {
    const RowScale* scale = reinterpret_cast<const RowScale*>(x + R * kBlock);
    const uint8_t* scales = panel + kLayout.scales_at(b);
    const uint8_t* group = panel + kLayout.group_at(b) + kLayout.group_scales;
    ahead.fetch();
    RIFTCO_UNROLL
    for (int half = 0; half < kHalves; half++) {
      I16 dot[R];
      block_dot<kType, R>(panel + kLayout.values_at(b), half, reinterpret_cast<const int8_t*>(x), scale, dot);
      F16 d;
      if constexpr (has_parts(kType)) {
        d = load_halves(group) * load_bytes_unsigned(scales);
      } else if constexpr (kType == DType::q6_k) {
        d = load_halves(group) * load_bytes_signed(scales + 16 * half);
      } else {
        d = load_halves(scales);
      }
      RIFTCO_UNROLL
      for (int r = 0; r < R; r++) acc[r] = fma(to_float(dot[r]), d * F16::splat(scale[r].scale), acc[r]);
    }
    if constexpr (has_parts(kType)) {
      const F16 low = load_halves(group + 32) * load_bytes_unsigned(scales + 16);
      RIFTCO_UNROLL
      for (int r = 0; r < R; r++) acc[r] = fma(low, F16::splat(-scale[r].scaled_sum), acc[r]);
    } else if constexpr (has_minimum(kType)) {
      const F16 low = load_halves(scales + 32);
      RIFTCO_UNROLL
      for (int r = 0; r < R; r++) acc[r] = fma(low, F16::splat(scale[r].scaled_sum), acc[r]);
    }
  }
  RIFTCO_UNROLL
  for (int r = 0; r < R; r++) to.put(row + size_t(r), column, acc[r]);
}

inline constexpr uint32_t kStretch = 256;  // inputs
inline constexpr uint32_t kPiece = 16;     // inputs between fetches: many lines at once would wait

// The inputs of a float panel that are worked on at a time, before the next ones are: of a single row, all.
struct Stretch {
  uint32_t first, count;
  bool last;
};

// acc[r][n] = fma(x[k], w[k], acc[r][n]) for `inputs` inputs k in order; x: a tile of R rows, w: N vectors of a panel.
template <int R, int N, class Element>
RIFTCO_INLINE void multiply_inputs(F16 (&acc)[R][N], uint32_t inputs, const Element* w, const float* x) {
  multiply(
      acc, inputs, [x](size_t t, int r) { return x[t * R + size_t(r)]; },
      [w](size_t t, int n) { return load16(w + t * kFloatPanel + 16 * size_t(n)); });
}
template <int R, int N>
RIFTCO_INLINE void multiply_inputs(F16 (&acc)[R][N], uint32_t inputs, const BFloat* w, const float* x) {
  uint32_t k = 0;
  for (; k + 2 <= inputs; k += 2, w += 2 * kFloatPanel, x += 2 * R) {
    multiply(
        acc, 1, [x](size_t, int r) { return x[r]; }, [w](size_t, int n) { return load_first(w + 32 * n); });
    multiply(
        acc, 1, [x](size_t, int r) { return x[R + r]; },
        [w](size_t, int n) { return load_second(w + 32 * n); });
  }
  if (k < inputs)
    multiply(
        acc, 1, [x](size_t, int r) { return x[r]; }, [w](size_t, int n) { return load_first(w + 32 * n); });
}
template <int R, int N, std::same_as<Pair> Input>
RIFTCO_INLINE void multiply_inputs(F16 (&acc)[R][N], uint32_t inputs, const BFloat* w, const Input* x) {
  for (uint32_t k = 0; k < inputs; k += 2, w += 2 * kFloatPanel, x += R)
    each(acc, [&](F16& a, size_t r, size_t n) { a = add_products(a, x[r], w + 32 * n); });
}

template <class Input>
inline constexpr uint32_t kInputsIn = std::is_same_v<Input, Pair> ? 2 : 1;

// N vectors of a float panel.
template <class Element, class Input, int R, int N>
RIFTCO_INLINE void float_columns(const Element* w, const Input* x, const Stretch& stretch, float* sums,
                                 Ahead ahead, const Output& to, size_t row, uint32_t column) {
  F16 acc[R][N];
  each(acc, [&](F16& a, size_t r, size_t n) {
    a = stretch.first == 0 ? F16::splat(0) : F16::load(sums + r * kFloatPanel + 16 * n);
  });
  for (uint32_t done = 0; done < stretch.count; done += kPiece) {
    if constexpr (R > 1) ahead.fetch();
    multiply_inputs(acc, R > 1 ? smaller(kPiece, stretch.count - done) : stretch.count,
                    w + size_t(done) * kFloatPanel, x + size_t(done) / kInputsIn<Input> * R);
    if (R == 1) break;
  }
  each(acc, [&](F16 a, size_t r, size_t n) {
    if (stretch.last) {
      to.put(row + r, column + 16 * uint32_t(n), a);
    } else {
      a.store(sums + r * kFloatPanel + 16 * n);
    }
  });
}

// The whole panel at once where its accumulators fit in registers, else vector by vector.
template <class Element, class Input, int R>
[[gnu::noinline]] void float_panel(const Element* w, const Input* x, const Stretch& stretch, float* sums,
                                   Ahead ahead, const Output& to, size_t row, uint32_t column) {
  if constexpr (R * kFloatVectors <= kAccumulators) {
    float_columns<Element, Input, R, kFloatVectors>(w, x, stretch, sums, ahead, to, row, column);
  } else {
    constexpr size_t kVector = std::is_same_v<Element, BFloat> ? 32 : 16;  // elements
    ahead.step /= kFloatVectors;
    for (uint32_t n = 0; n < kFloatVectors; n++) {
      float_columns<Element, Input, R, 1>(w + kVector * n, x, stretch, sums + 16 * n, ahead, to, row,
                                          column + 16 * n);
      ahead.at += ahead.step * ceil_div(stretch.count, kPiece);
    }
  }
}

// Runs tile(panel pointer, panel, tile, its rows) over `panels` and all rows.
template <int kTileRows, class Tile>
RIFTCO_INLINE void for_each_tile(Range panels, uint32_t rows, Tile tile) {
  static_assert(kCacheRows % kTileRows == 0);
  for (uint32_t first = 0; first < rows; first += kCacheRows)
    for (size_t p = panels.begin; p < panels.end; p++)
      for (uint32_t row = first; row < smaller(first + kCacheRows, rows); row += kTileRows)
        tile(p, row, smaller(kTileRows, rows - row));
}

template <DType kType>
void blocked_panels(const PackedMatrix& m, const Operand& x, const Output& to, Range panels) {
  const uint8_t* data = reinterpret_cast<const uint8_t*>(m.data);
  const size_t bytes = panel_bytes(kType, m.inputs);
  const uint32_t blocks = m.inputs / kBlock;
  const SharedFetch next(bytes, ceil_div(smaller(x.rows, kCacheRows), kDotRows), blocks);
  for_each_tile<kDotRows>(panels, x.rows, [&](size_t p, uint32_t row, uint32_t rows) {
    const uint8_t *w = data + p * bytes, *xs = int8_tile(x, row / kDotRows);
    const uint32_t column = uint32_t(p) * kPanel;
    const Ahead ahead =
        x.rows > 1 ? next.part(w + bytes, row % kCacheRows / kDotRows) : Ahead{w + kFar, bytes / blocks};
    with_rows<kDotRows>(rows,
                        [&]<int R>() { blocked_tile<kType, R>(w, xs, blocks, to, row, column, ahead); });
  });
}

// tile(t): tile t of the operand, in numbers of type Input.
template <class Element, class Input, class Tile>
void float_panels(const PackedMatrix& m, uint32_t rows, const Output& to, Range panels, Tile tile_of) {
  const size_t panel_elements = panel_bytes(m.type, m.inputs) / sizeof(Element);
  const Element* data = reinterpret_cast<const Element*>(m.data);
  alignas(64) float sums[kCacheRows * kFloatPanel];  // between stretches
  const uint32_t most = rows > 1 ? kStretch : m.inputs;
  for (uint32_t first = 0; first < rows; first += kCacheRows) {
    const uint32_t block = smaller(kCacheRows, rows - first), tiles = uint32_t(ceil_div(block, kFloatRows));
    for (size_t p = panels.begin; p < panels.end; p++)
      for (uint32_t input = 0; input < m.inputs; input += most) {
        const uint32_t count = smaller(most, m.inputs - input);
        const Stretch stretch = {input, count, input + count == m.inputs};
        const Element* w = data + p * panel_elements + size_t(input) * kFloatPanel;
        const size_t elements = size_t(count) * kFloatPanel;
        const SharedFetch next(elements * sizeof(Element), tiles, ceil_div(count, kPiece));
        for (uint32_t tile = 0; tile < tiles; tile++) {
          const uint32_t row = first + tile * kFloatRows;
          const Input* x = tile_of(row / kFloatRows);
          with_rows<kFloatRows>(smaller(kFloatRows, rows - row), [&]<int R>() {
            float_panel<Element, Input, R>(w, x + size_t(input) / kInputsIn<Input> * R, stretch,
                                           sums + tile * kFloatRows * kFloatPanel,
                                           next.part(w + elements, tile), to, row, uint32_t(p) * kFloatPanel);
          });
        }
      }
  }
}
template <class Element>
void exact_panels(const PackedMatrix& m, const Operand& x, const Output& to, Range panels) {
  float_panels<Element, float>(m, x.rows, to, panels, [&](uint32_t tile) { return float_tile(x, tile); });
}
void rounded_panels(const PackedMatrix& m, const Operand& x, const Output& to, Range panels) {
  using Input = std::conditional_t<kPairProducts, Pair, float>;
  float_panels<BFloat, Input>(m, x.rows, to, panels, [&](uint32_t tile) {
    return reinterpret_cast<const Input*>(rounded_tile(x, tile));
  });
}

void multiply_panels(const PackedMatrix& m, const Operand& x, const Output& to, Range panels) {
  with_type(m.type, [&]<DType kType>() {
    if constexpr (is_blocked(kType)) {
      blocked_panels<kType>(m, x, to, panels);
    } else if constexpr (kType == DType::f32) {
      exact_panels<float>(m, x, to, panels);
    } else if constexpr (kType == DType::f16) {
      exact_panels<Half>(m, x, to, panels);
    } else if (m.compute == Compute::exact) {
      exact_panels<BFloat>(m, x, to, panels);
    } else {
      rounded_panels(m, x, to, panels);
    }
  });
}

void linear(const LinearArgs& args, Share share) {
  size_t total = 0;
  for (uint32_t i = 0; i < args.count; i++)
    total += panel_count(args.matrices[i]->type, args.matrices[i]->outputs);
  const Range mine = part(total, share);
  size_t before = 0;  // panels of the matrices already passed
  for (uint32_t i = 0; i < args.count; i++) {
    const PackedMatrix& m = *args.matrices[i];
    const size_t panels = panel_count(m.type, m.outputs);
    const Range range = {mine.begin > before ? mine.begin - before : 0,
                         mine.end > before ? mine.end - before : 0};
    const Range own = {range.begin < panels ? range.begin : panels, range.end < panels ? range.end : panels};
    const Output to = {m.bias, args.out[i], args.stride[i], m.outputs, args.accumulate};
    multiply_panels(m, args.x, to, own);
    before += panels;
  }
}

}  // namespace
}  // namespace riftco
