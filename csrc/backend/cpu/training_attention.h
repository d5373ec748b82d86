// Causal attention of training over tiles of kTile queries and kTile keys. flash keeps a maximum and a sum per row and
// computes the probabilities of a tile again on the way back; materialized reads them from memory.
//
// A tile's operands are copied into scratch, padded to whole vectors with zeros, so that its products run over whole
// vectors whatever the head width.
#pragma once
#include "backend/cpu/attention.h"
#include "backend/cpu/training_layers.h"

namespace riftco {
namespace {

inline constexpr uint32_t kTile = 64;

// Scratch of a unit: eight tiles [kTile][padded width] or the other way round, three of [kTile][kTile] and some rows; forward
// also keys and values of the whole sequence.
size_t training_attention_scratch_bytes(uint32_t length, uint32_t head_width) {
  const size_t tile = size_t(kTile) * padded_width(head_width),
               keys = round_up(length, kTile) * padded_width(head_width);
  return (8 * tile + 3 * kTile * kTile + 2 * keys + 4 * kTile) * sizeof(float);
}

class ScratchCutter {
 public:
  explicit ScratchCutter(std::byte* memory) : next_(reinterpret_cast<float*>(memory)) {}
  float* take(size_t floats) {
    float* p = next_;
    next_ += floats;
    return p;
  }

 private:
  float* next_;
};

// --- products of tiles ---

// The left side of a product: element (r, k) at data[r * row + k * step].
struct TileLeft {
  const float* data;
  size_t row, step;
};

template <int R, int N>
RIFTCO_INLINE void tile_columns(TileLeft a, const float* b, size_t b_stride, uint32_t depth, bool add,
                                float* c, size_t c_stride) {
  F16 acc[R][N];
  each(acc,
       [&](F16& v, size_t r, size_t n) { v = add ? F16::load(c + r * c_stride + 16 * n) : F16::splat(0); });
  multiply(
      acc, depth, [a](size_t k, int r) { return a.data[size_t(r) * a.row + k * a.step]; },
      [b, b_stride](size_t k, int n) { return F16::load(b + k * b_stride + 16 * size_t(n)); });
  each(acc, [&](F16 v, size_t r, size_t n) { v.store(c + r * c_stride + 16 * n); });
}

// c[r][n] (+)= sum over k of a(r, k) b[k][n]; `columns` is a multiple of 16.
void multiply_tiles(TileLeft a, const float* b, size_t b_stride, uint32_t rows, uint32_t columns,
                    uint32_t depth, bool add, float* c, size_t c_stride) {
  for (uint32_t n = 0; n < columns; n += 16)
    for (uint32_t r = 0; r < rows; r += kLines) {
      const TileLeft from = {a.data + r * a.row, a.row, a.step};
      with_rows<kLines>(smaller(kLines, rows - r), [&]<int R>() {
        tile_columns<R, 1>(from, b + n, b_stride, depth, add, c + r * c_stride + n, c_stride);
      });
    }
}

// --- copies ---

// Rows of a head, scaled, with zeros up to the padded width.
void copy_rows(const float* from, size_t stride, uint32_t rows, uint32_t head_width, float scale, float* to) {
  const uint32_t width = uint32_t(padded_width(head_width));
  for (uint32_t r = 0; r < rows; r++)
    for (uint32_t d = 0; d < width; d += 16)
      (load_some(from + r * stride + d, smaller(16, head_width - d)) * F16::splat(scale))
          .store(to + r * width + d);
}

// [rows][head_width] to [head_width][kTile], with zeros for the rows that are not there.
void copy_transposed(const float* from, size_t stride, uint32_t rows, uint32_t head_width, float* to) {
  if (rows < kTile) std::memset(to, 0, size_t(head_width) * kTile * sizeof(float));
  for (uint32_t d0 = 0; d0 < head_width; d0 += 16)  // whole lines on both sides
    for (uint32_t r = 0; r < rows; r++)
      for (uint32_t d = d0; d < smaller(d0 + 16, head_width); d++) to[d * kTile + r] = from[r * stride + d];
}

// --- softmax ---

// Keys [from, to) of the tile from `key` on that query `position` sees.
Visible visible_keys(const TrainingAttentionArgs& args, uint32_t position, uint32_t key) {
  const uint32_t first = position >= args.window ? position - args.window + 1 : 0;
  return {first < key ? 0 : smaller(first - key, kTile),
          position < key ? 0 : smaller(kTile, position - key + 1)};
}

RIFTCO_INLINE F16 visible_or(const float* x, uint32_t j, Visible v, float other) {
  return v.to > j ? v.choose(j, F16::load(x + j), F16::splat(other)) : F16::splat(other);
}

// One row of scores becomes exp(score - maximum), 0 where it is not visible; returns what earlier sums are multiplied with.
float soften_row(float* scores, Visible visible, SoftmaxStatistics* row) {
  if (!visible.any()) {
    std::memset(scores, 0, kTile * sizeof(float));
    return 1;
  }
  F16 most = F16::splat(row->maximum);
  for (uint32_t j = 0; j < kTile; j += 16)
    most = max_nan(most, visible_or(scores, j, visible, -__builtin_inff()));
  const float now = largest(most), correction = exp_one(row->maximum - now);
  F16 added = F16::splat(0);
  for (uint32_t j = 0; j < kTile; j += 16) {
    const F16 p = formulas::exp(visible_or(scores, j, visible, -__builtin_inff()) - F16::splat(now));
    p.store(scores + j);
    added = added + p;
  }
  *row = {now, __builtin_fmaf(row->sum, correction, sum(added))};
  return correction;
}

// --- forward ---

struct AttentionUnitView {  // one head of one sequence
  size_t q_stride, k_stride;
  const float *q, *k, *v;
  size_t query_at, key_at;  // offsets of row 0
  SoftmaxStatistics* statistics;
  float* probabilities;  // [length, length] or null
};

AttentionUnitView view_of(const TrainingAttentionArgs& args, uint32_t sequence, uint32_t head) {
  const uint32_t kv_head = head / (args.heads / args.kv_heads);
  const size_t q_stride = size_t(args.heads) * args.head_width,
               k_stride = size_t(args.kv_heads) * args.head_width;
  const size_t query_at = size_t(sequence) * args.length * q_stride + size_t(head) * args.head_width;
  const size_t key_at = size_t(sequence) * args.length * k_stride + size_t(kv_head) * args.head_width;
  const size_t unit = size_t(sequence) * args.heads + head;
  return {q_stride,
          k_stride,
          args.q + query_at,
          args.k + key_at,
          args.v + key_at,
          query_at,
          key_at,
          args.statistics + unit * args.length,
          args.probabilities ? args.probabilities + unit * args.length * args.length : nullptr};
}

// First key tile that queries from `position` on see.
uint32_t first_tile(const TrainingAttentionArgs& args, uint32_t position) {
  return position >= args.window ? (position - args.window + 1) / kTile * kTile : 0;
}

// One tile of queries against all keys it sees. k_t: [tile][head_width][kTile], v: [keys][padded].
void forward_tile(const TrainingAttentionArgs& args, const AttentionUnitView& u, uint32_t first,
                  const float* k_t, const float* v, ScratchCutter scratch) {
  const uint32_t width = uint32_t(padded_width(args.head_width)), rows = smaller(kTile, args.length - first);
  float *q = scratch.take(kTile * width), *out = scratch.take(kTile * width),
        *scores = scratch.take(kTile * kTile);
  copy_rows(u.q + first * u.q_stride, u.q_stride, rows, args.head_width, args.scale, q);
  std::memset(out, 0, kTile * width * sizeof(float));
  SoftmaxStatistics* row = u.statistics + first;
  for (uint32_t r = 0; r < rows; r++) row[r] = {-__builtin_inff(), 0};
  for (uint32_t key = first_tile(args, first); key < first + rows; key += kTile) {
    const uint32_t keys = smaller(kTile, args.length - key);
    multiply_tiles({q, width, 1}, k_t + size_t(key) * width, kTile, rows, kTile, args.head_width, false,
                   scores, kTile);
    for (uint32_t r = 0; r < rows; r++) {
      const float c = soften_row(scores + r * kTile, visible_keys(args, first + r, key), row + r);
      if (c != 1)
        for (uint32_t d = 0; d < width; d += 16)
          (F16::load(out + r * width + d) * F16::splat(c)).store(out + r * width + d);
    }
    multiply_tiles({scores, kTile, 1}, v + size_t(key) * width, width, rows, width, keys, true, out, width);
  }
  for (uint32_t r = 0; r < rows; r++)
    for (uint32_t d = 0; d < args.head_width; d += 16) {
      const uint32_t n = smaller(16, args.head_width - d);
      store_some(F16::load(out + r * width + d) / F16::splat(row[r].sum),
                 args.context + u.query_at + (first + r) * u.q_stride + d, n);
    }
}

// Probabilities of a tile, [kTile][kTile], from the scores in it.
void probabilities_of(const TrainingAttentionArgs& args, const AttentionUnitView& u, uint32_t first,
                      uint32_t rows, uint32_t key, float* scores) {
  for (uint32_t r = 0; r < rows; r++) {
    const SoftmaxStatistics row = u.statistics[first + r];
    const Visible visible = visible_keys(args, first + r, key);
    const F16 most = F16::splat(row.maximum), inverse = F16::splat(1.0f / row.sum);
    for (uint32_t j = 0; j < kTile; j += 16) {
      float* at = scores + r * kTile;
      const F16 p = formulas::exp(visible_or(at, j, visible, -__builtin_inff()) - most) * inverse;
      (visible.any() ? p : F16::splat(0)).store(at + j);
    }
  }
}

// Writes the probabilities of the queries from `first` on: rows of `length`, zeros where nothing is seen.
void keep_probabilities(const TrainingAttentionArgs& args, const AttentionUnitView& u, uint32_t first,
                        const float* k_t, ScratchCutter scratch) {
  const uint32_t width = uint32_t(padded_width(args.head_width)), rows = smaller(kTile, args.length - first);
  float *q = scratch.take(kTile * width), *scores = scratch.take(kTile * kTile);
  copy_rows(u.q + first * u.q_stride, u.q_stride, rows, args.head_width, args.scale, q);
  for (uint32_t key = 0; key < args.length; key += kTile) {
    const uint32_t keys = smaller(kTile, args.length - key);
    multiply_tiles({q, width, 1}, k_t + size_t(key) * width, kTile, rows, kTile, args.head_width, false,
                   scores, kTile);
    probabilities_of(args, u, first, rows, key, scores);
    for (uint32_t r = 0; r < rows; r++)
      std::memcpy(u.probabilities + size_t(first + r) * args.length + key, scores + r * kTile,
                  keys * sizeof(float));
  }
}

void attention_forward(const TrainingAttentionArgs& args, uint32_t unit) {
  const AttentionUnitView u = view_of(args, unit / args.heads, unit % args.heads);
  const uint32_t width = uint32_t(padded_width(args.head_width));
  const size_t all = round_up(args.length, kTile) * width;
  ScratchCutter scratch(args.scratch);
  float *k_t = scratch.take(all), *v = scratch.take(all);
  copy_rows(u.v, u.k_stride, args.length, args.head_width, 1, v);
  for (uint32_t key = 0; key < args.length; key += kTile)
    copy_transposed(u.k + key * u.k_stride, u.k_stride, smaller(kTile, args.length - key), args.head_width,
                    k_t + size_t(key) * width);
  for (uint32_t first = 0; first < args.length; first += kTile) {
    forward_tile(args, u, first, k_t, v, scratch);
    if (u.probabilities) keep_probabilities(args, u, first, k_t, scratch);
  }
}

// --- backward ---

struct BackwardScratch {
  float *k, *k_t, *v_t, *dk, *dv;  // of the tile of keys
  float *q, *d_context, *dq;       // of the tile of queries
  float *p, *dp;                   // [kTile][kTile]
  float* along;                    // [kTile]: sum of context and its gradient
};

// p and dp of one tile; then dv += p^T dO, dk += dS^T q, dq = dS k with dS = p (dp - along).
void backward_tile(const TrainingAttentionArgs& args, const AttentionUnitView& u, uint32_t first,
                   uint32_t key, const BackwardScratch& s) {
  const uint32_t width = uint32_t(padded_width(args.head_width)), rows = smaller(kTile, args.length - first),
                 keys = smaller(kTile, args.length - key);
  copy_rows(u.q + first * u.q_stride, u.q_stride, rows, args.head_width, args.scale, s.q);
  const size_t at = u.query_at + first * u.q_stride;
  copy_rows(args.dcontext + at, u.q_stride, rows, args.head_width, 1, s.d_context);
  for (uint32_t r = 0; r < rows; r++) {
    F16 along = F16::splat(0);
    for (uint32_t d = 0; d < args.head_width; d += 16)
      along = fma(F16::load(s.d_context + r * width + d),
                  load_some(args.context + at + r * u.q_stride + d, smaller(16, args.head_width - d)), along);
    s.along[r] = sum(along);
  }
  if (u.probabilities) {
    for (uint32_t r = 0; r < rows; r++) {
      if (keys < kTile) std::memset(s.p + r * kTile, 0, kTile * sizeof(float));
      std::memcpy(s.p + r * kTile, u.probabilities + size_t(first + r) * args.length + key,
                  keys * sizeof(float));
    }
  } else {
    multiply_tiles({s.q, width, 1}, s.k_t, kTile, rows, kTile, args.head_width, false, s.p, kTile);
    probabilities_of(args, u, first, rows, key, s.p);
  }
  multiply_tiles({s.d_context, width, 1}, s.v_t, kTile, rows, kTile, args.head_width, false, s.dp, kTile);
  multiply_tiles({s.p, 1, kTile}, s.d_context, width, keys, width, rows, true, s.dv, width);
  for (uint32_t r = 0; r < rows; r++)
    for (uint32_t j = r * kTile; j < (r + 1) * kTile; j += 16)
      (F16::load(s.p + j) * (F16::load(s.dp + j) - F16::splat(s.along[r]))).store(s.dp + j);
  multiply_tiles({s.dp, 1, kTile}, s.q, width, keys, width, rows, true, s.dk, width);
  multiply_tiles({s.dp, kTile, 1}, s.k, width, rows, width, keys, false, s.dq, width);
  const F16 scale = F16::splat(args.scale);
  for (uint32_t r = 0; r < rows; r++)
    for (uint32_t d = 0; d < args.head_width; d += 16) {
      const uint32_t n = smaller(16, args.head_width - d);
      float* to = args.dq + at + r * u.q_stride + d;
      store_some(fma(F16::load(s.dq + r * width + d), scale, load_some(to, n)), to, n);
    }
}

void write_rows(const float* from, uint32_t rows, uint32_t head_width, float* to, size_t stride) {
  for (uint32_t r = 0; r < rows; r++)
    std::memcpy(to + r * stride, from + r * padded_width(head_width), head_width * sizeof(float));
}

void attention_backward(const TrainingAttentionArgs& args, uint32_t unit) {
  const uint32_t group = args.heads / args.kv_heads, width = uint32_t(padded_width(args.head_width));
  const uint32_t sequence = unit / args.kv_heads, first_head = unit % args.kv_heads * group;
  ScratchCutter cut(args.scratch);
  const auto tile = [&] { return cut.take(kTile * width); };
  const BackwardScratch s = {tile(),
                             tile(),
                             tile(),
                             tile(),
                             tile(),
                             tile(),
                             tile(),
                             tile(),
                             cut.take(kTile * kTile),
                             cut.take(kTile * kTile),
                             cut.take(kTile)};
  for (uint32_t h = first_head; h < first_head + group; h++) {
    const AttentionUnitView u = view_of(args, sequence, h);
    for (uint32_t r = 0; r < args.length; r++)
      std::memset(args.dq + u.query_at + r * u.q_stride, 0, args.head_width * sizeof(float));
  }
  const AttentionUnitView keys_of = view_of(args, sequence, first_head);
  for (uint32_t key = 0; key < args.length; key += kTile) {
    const uint32_t keys = smaller(kTile, args.length - key);
    const size_t stride = keys_of.k_stride, at = key * stride;
    copy_rows(keys_of.k + at, stride, keys, args.head_width, 1, s.k);
    copy_transposed(keys_of.k + at, stride, keys, args.head_width, s.k_t);
    copy_transposed(keys_of.v + at, stride, keys, args.head_width, s.v_t);
    std::memset(s.dk, 0, kTile * width * sizeof(float));
    std::memset(s.dv, 0, kTile * width * sizeof(float));
    for (uint32_t h = first_head; h < first_head + group; h++) {
      const AttentionUnitView u = view_of(args, sequence, h);
      for (uint32_t first = key; first < args.length; first += kTile)
        if (first_tile(args, first) <= key) backward_tile(args, u, first, key, s);
    }
    write_rows(s.dk, keys, args.head_width, args.dk + keys_of.key_at + at, stride);
    write_rows(s.dv, keys, args.head_width, args.dv + keys_of.key_at + at, stride);
  }
}

}  // namespace
}  // namespace riftco
