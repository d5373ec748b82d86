// Paged attention: rows of one sequence and the query heads that share a key/value head, over segments of keys.
//
// A line is one query head of one row. Lines are worked on in tiles of kLines; each tile of keys is found once (in place
// where 16 floats lie in one page, else gathered and widened) and used by all lines of the unit. Only keys that a line may see enter
// its maximum, its sum and its chains: what lies in other slots, NaN included, is never combined with anything.
#pragma once
#include "backend/cpu/cache_page.h"
#include "backend/cpu/linear.h"
#include "core/math_formulas.h"

namespace riftco {
namespace {

inline constexpr uint32_t kGroups = kKeyTile / 16;  // groups of 16 keys in a tile
inline constexpr int kLines = kAccumulators < 6 ? kAccumulators : 6;

// Lines' sums in one segment, or folded over several: maxima, sums, outputs [line][padded width].
struct Sums {
  float *maximum, *total, *output;
};

struct Scratch {
  float* queries;  // [tile of kLines]{[dim][line]}, scaled
  Sums segment, folded;
  float *keys, *values;  // gathered: [group][dim][16], [key][padded width]
};

RIFTCO_INLINE uint32_t unit_lines(uint32_t group) { return uint32_t(round_up(kMaxUnitRows * group, 16)); }

size_t attention_scratch_bytes(uint32_t group, uint32_t head_width) {
  const size_t lines = unit_lines(group), padded = padded_width(head_width);
  return (lines * (head_width + 2 * padded + 4) + kKeyTile * (head_width + padded)) * sizeof(float);
}
size_t attention_slot_floats(uint32_t head_width) { return 16 + padded_width(head_width); }

Scratch cut_scratch(std::byte* memory, uint32_t group, uint32_t head_width) {
  const size_t lines = unit_lines(group), padded = padded_width(head_width);
  float* next = reinterpret_cast<float*>(memory);
  const auto take = [&next](size_t n) {
    float* p = next;
    next += n;
    return p;
  };
  const Sums segment = {take(lines), take(lines), take(lines * padded)};
  const Sums folded = {take(lines), take(lines), take(lines * padded)};
  float* queries = take(lines * head_width);
  float* keys = take(kKeyTile * size_t(head_width));
  return {queries, segment, folded, keys, take(kKeyTile * padded)};
}

// Where the keys and values of a tile are.
struct KeyTile {
  const float* key[kGroups];
  size_t key_stride[kGroups];
  const float* value[kGroups];
};

// Copies and widens `count` keys from `position` on.
template <class T>
void gather_group(const CacheView& view, uint32_t layer, uint32_t kv_head, uint32_t position, uint32_t count,
                  float* keys, float* values) {
  const KvGeometry& g = *view.geometry;
  const size_t padded = padded_width(g.head_width);
  const bool one_page = position % g.page_size + count <= g.page_size;  // their keys are neighbours
  HeadSlot<T> slots[16];
  for (uint32_t j = 0; j < count; j++) slots[j] = head_slot<T>(view, layer, kv_head, position + j);
  T across[16] = {};
  for (size_t d = 0; d < g.head_width; d++) {
    for (uint32_t j = 0; j < count && !one_page; j++) across[j] = slots[j].key[d * g.page_size];
    load16(one_page ? slots[0].key + d * g.page_size : across).store(keys + 16 * d);
  }
  for (uint32_t j = 0; j < count; j++)
    for (size_t d = 0; d < padded; d += 16) load16(slots[j].value + d).store(values + j * padded + d);
}

// Keys [from, to) of a tile, those that a line sees.
struct Visible {
  uint32_t from, to;

  RIFTCO_INLINE bool any() const { return from < to; }
  // `yes` for the keys in this, `no` for the others, of the group from key j on.
  RIFTCO_INLINE F16 choose(uint32_t j, F16 yes, F16 no) const {
    yes = select(first_lanes(to - j), yes, no);
    return from > j ? select(first_lanes(from - j), no, yes) : yes;
  }
};

// Keys `wanted` of the tile from position `first` on. Groups around them repeat the first: readable, never used.
template <class T>
KeyTile find_tile(const CacheView& view, uint32_t layer, uint32_t kv_head, uint32_t first, Visible wanted,
                  const Scratch& scratch) {
  const KvGeometry& g = *view.geometry;
  KeyTile tile;
  const uint32_t begin = wanted.from / 16;
  for (uint32_t i = begin; 16 * i < wanted.to; i++) {
    const uint32_t position = first + 16 * i, n = smaller(16, wanted.to - 16 * i);
    if constexpr (sizeof(T) == sizeof(float))
      if (position % g.page_size + n <= g.page_size) {
        const HeadSlot<T> slot = head_slot<T>(view, layer, kv_head, position);
        tile.key[i] = slot.key, tile.key_stride[i] = g.page_size, tile.value[i] = slot.value;
        continue;
      }
    float* keys = scratch.keys + size_t(i) * 16 * g.head_width;
    float* values = scratch.values + size_t(i) * 16 * padded_width(g.head_width);
    gather_group<T>(view, layer, kv_head, position, n, keys, values);
    tile.key[i] = keys, tile.key_stride[i] = 16, tile.value[i] = values;
  }
  for (uint32_t i = 0; i < kGroups; i++)
    if (i < begin || 16 * i >= wanted.to)
      tile.key[i] = tile.key[begin], tile.key_stride[i] = tile.key_stride[begin],
      tile.value[i] = tile.value[begin];
  return tile;
}

// Vectors of keys or dims that R lines take at once: 1, 2 or 4.
template <int R>
inline constexpr int kAcross = R * 4 <= kAccumulators   ? 4
                               : R * 2 <= kAccumulators ? 2
                                                        : 1;

template <int R>
RIFTCO_INLINE void tile_scores(const KeyTile& tile, const float* queries, uint32_t head_width, Visible wanted,
                               float (*scores)[kKeyTile]) {
  constexpr int N = kAcross<R>;
  for (uint32_t g = wanted.from / 16 / N * N; 16 * g < wanted.to; g += N) {
    const float* key[N];
    size_t stride[N];
    F16 acc[R][N];
    RIFTCO_UNROLL
    for (int n = 0; n < N; n++)
      key[n] = tile.key[g + uint32_t(n)], stride[n] = tile.key_stride[g + uint32_t(n)];
    each(acc, [](F16& a, size_t, size_t) { a = F16::splat(0); });
    multiply(
        acc, head_width, [queries](size_t d, int r) { return queries[d * R + size_t(r)]; },
        [&](size_t d, int n) { return F16::load(key[n] + d * stride[n]); });
    each(acc, [&](F16 a, size_t r, size_t n) { a.store(scores[r] + 16 * (g + n)); });
  }
}

RIFTCO_INLINE float exp_one(float x) {
  alignas(64) float lanes[16];
  formulas::exp(F16::splat(x)).store(lanes);
  return lanes[0];
}

// Scores of one line become probabilities; returns what its earlier sums are to be multiplied with.
float tile_softmax(float* scores, Visible visible, float* maximum, float* total) {
  F16 most = F16::splat(*maximum);
  const uint32_t begin = visible.from / 16 * 16;
  for (uint32_t j = begin; j < visible.to; j += 16)
    most = visible.choose(j, max_nan(most, F16::load(scores + j)), most);
  const float now = largest(most), correction = exp_one(*maximum - now);
  F16 added = F16::splat(0);
  for (uint32_t j = begin; j < visible.to; j += 16) {
    const F16 p = formulas::exp(F16::load(scores + j) - F16::splat(now));
    p.store(scores + j);
    added = visible.choose(j, added + p, added);
  }
  *maximum = now;
  *total = __builtin_fmaf(*total, correction, sum(added));
  return correction;
}

// N vectors of dims from dim d on: output[line] = output[line] * correction[line], then + probability * value for the keys
// from .. to in order.
template <int R, int N>
RIFTCO_INLINE void add_values(const KeyTile& tile, const float (*p)[kKeyTile], uint32_t from, uint32_t to,
                              const float* correction, float* output, size_t padded, size_t d) {
  F16 acc[R][N];
  output += d;
  each(acc, [&](F16& a, size_t r, size_t n) {
    a = F16::load(output + r * padded + 16 * n) * F16::splat(correction[r]);
  });
  for (uint32_t j = from; j < to;) {
    const uint32_t end = smaller(to, (j / 16 + 1) * 16);
    const float* value = tile.value[j / 16] + j % 16 * padded + d;
    multiply(
        acc, end - j, [p, j](size_t t, int r) { return p[r][j + t]; },
        [value, padded](size_t t, int n) { return F16::load(value + t * padded + 16 * n); });
    j = end;
  }
  each(acc, [&](F16 a, size_t r, size_t n) { a.store(output + r * padded + 16 * n); });
}
template <int R>
RIFTCO_INLINE void add_all_values(const KeyTile& tile, const float (*p)[kKeyTile], uint32_t from, uint32_t to,
                                  const float* correction, float* output, size_t padded) {
  constexpr int N = kAcross<R>;
  size_t d = 0;
  for (; d + 16 * N <= padded; d += 16 * N)
    add_values<R, N>(tile, p, from, to, correction, output, padded, d);
  for (; d < padded; d += 16) add_values<R, 1>(tile, p, from, to, correction, output, padded, d);
}

// One tile of keys for R lines of which line r sees the keys visible[r]; a line that sees none is left alone. Each line
// takes its keys in order: those before the keys that all lines see, these for all lines at once, those behind them.
template <int R>
void tile_step(const KeyTile& tile, const float* queries, const Visible* visible, uint32_t head_width,
               const Sums& sums) {
  const size_t padded = padded_width(head_width);
  alignas(64) float p[R][kKeyTile];
  Visible some = {kKeyTile, 0}, all = {0, kKeyTile};
  for (int r = 0; r < R; r++) {
    all = {larger(all.from, visible[r].from), smaller(all.to, visible[r].to)};
    if (visible[r].any()) some = {smaller(some.from, visible[r].from), larger(some.to, visible[r].to)};
  }
  if (!all.any()) all = {kKeyTile, kKeyTile};
  tile_scores<R>(tile, queries, head_width, some, p);
  float correction[R];
  for (int r = 0; r < R; r++) {
    correction[r] =
        visible[r].any() ? tile_softmax(p[r], visible[r], sums.maximum + r, sums.total + r) : 1.0f;
    const uint32_t end = smaller(visible[r].to, all.from);
    if (visible[r].from >= end) continue;
    add_all_values<1>(tile, p + r, visible[r].from, end, correction + r, sums.output + size_t(r) * padded,
                      padded);
    correction[r] = 1;  // an exact factor
  }
  if (all.any()) add_all_values<R>(tile, p, all.from, all.to, correction, sums.output, padded);
  const float one = 1;
  for (int r = 0; r < R; r++)
    if (visible[r].to > all.to)
      add_all_values<1>(tile, p + r, all.to, visible[r].to, &one, sums.output + size_t(r) * padded, padded);
}

// a = a with b behind it, for one line.
void fold(float* a_maximum, float* a_total, float* a_output, float b_maximum, float b_total,
          const float* b_output, size_t padded) {
  const float now = max_nan(*a_maximum, b_maximum);
  const float ca = exp_one(*a_maximum - now), cb = exp_one(b_maximum - now);
  for (size_t d = 0; d < padded; d += 16)
    fma(F16::load(a_output + d), F16::splat(ca), F16::load(b_output + d) * F16::splat(cb))
        .store(a_output + d);
  *a_maximum = now;
  *a_total = __builtin_fmaf(*a_total, ca, b_total * cb);
}

void write_context(float total, const float* output, uint32_t head_width, float* context) {
  for (uint32_t d = 0; d < head_width; d += 16)
    (F16::load(output + d) / F16::splat(total)).store_first(context + d, smaller(16, head_width - d));
}

// What attend() works on.
struct Unit {
  const AttentionArgs& args;
  const AttentionUnit& unit;
  Scratch scratch;
  uint32_t group, lines;
  size_t padded;

  uint32_t row(uint32_t line) const { return unit.first_row + line / group; }
  uint32_t position(uint32_t line) const { return args.rows[row(line)].position; }
  uint32_t first_key(uint32_t line) const {  // that the line sees
    const uint32_t p = position(line);
    return p >= args.window ? p - args.window + 1 : 0;
  }
  uint32_t first_segment(uint32_t line) const { return first_key(line) / kKeySegment; }
  bool sees(uint32_t line, uint32_t segment) const {
    return segment >= first_segment(line) && segment <= position(line) / kKeySegment;
  }
  Visible visible(uint32_t line, uint32_t tile) const {  // of the tile from key `tile` on
    const uint32_t first = first_key(line), p = position(line);
    return {first < tile ? 0 : first - tile, p < tile ? 0 : smaller(kKeyTile, p - tile + 1)};
  }
  size_t query(uint32_t line) const {  // offset in q and context
    return (size_t(row(line)) * args.heads + unit.kv_head * group + line % group) * args.head_width;
  }
};

void scale_queries(const Unit& u) {
  for (uint32_t line = 0; line < u.lines; line++) {
    const uint32_t first = line / kLines * kLines, across = smaller(kLines, u.lines - first);
    float* to = u.scratch.queries + size_t(first) * u.args.head_width + line % kLines;
    const float* q = u.args.q + u.query(line);
    for (size_t d = 0; d < u.args.head_width; d++) to[d * across] = q[d] * u.args.scale;
  }
}

void clear(const Sums& sums, uint32_t lines, size_t padded) {
  for (uint32_t i = 0; i < lines; i++) sums.maximum[i] = -__builtin_inff(), sums.total[i] = 0;
  std::memset(sums.output, 0, lines * padded * sizeof(float));
}

void walk_tile(const Unit& u, uint32_t first_key) {
  const CacheView& view = *u.args.rows[u.unit.first_row].view;
  const Visible wanted = {u.visible(0, first_key).from, u.visible(u.lines - 1, first_key).to};
  const KeyTile tile = with_element(view.geometry->element, [&]<class T>() {
    return find_tile<T>(view, u.args.layer, u.unit.kv_head, first_key, wanted, u.scratch);
  });
  for (uint32_t line = 0; line < u.lines; line += kLines) {
    const uint32_t across = smaller(kLines, u.lines - line);
    Visible visible[kLines];
    bool any = false;
    for (uint32_t i = 0; i < across; i++) {
      visible[i] = u.visible(line + i, first_key);
      any = any || visible[i].any();
    }
    if (!any) continue;
    const float* queries = u.scratch.queries + size_t(line) * u.args.head_width;
    const Sums sums = {u.scratch.segment.maximum + line, u.scratch.segment.total + line,
                       u.scratch.segment.output + line * u.padded};
    with_rows<kLines>(across,
                      [&]<int R>() { tile_step<R>(tile, queries, visible, u.args.head_width, sums); });
  }
}

// Lines that see the segment: the first one is copied, later ones are folded.
void fold_segment(const Unit& u, uint32_t segment) {
  const Sums &a = u.scratch.folded, &b = u.scratch.segment;
  for (uint32_t i = 0; i < u.lines; i++) {
    if (!u.sees(i, segment)) continue;
    float *a_output = a.output + i * u.padded, *b_output = b.output + i * u.padded;
    if (segment == larger(u.unit.first_segment, u.first_segment(i))) {
      a.maximum[i] = b.maximum[i], a.total[i] = b.total[i];
      std::memcpy(a_output, b_output, u.padded * sizeof(float));
    } else {
      fold(a.maximum + i, a.total + i, a_output, b.maximum[i], b.total[i], b_output, u.padded);
    }
  }
}

void attend(const AttentionArgs& args, const AttentionUnit& unit) {
  const uint32_t group = args.heads / args.kv_heads;
  const Unit u = {args,
                  unit,
                  cut_scratch(args.scratch, group, args.head_width),
                  group,
                  unit.rows * group,
                  padded_width(args.head_width)};
  const uint32_t first = u.first_key(0), last = u.position(u.lines - 1);
  scale_queries(u);
  for (uint32_t s = larger(unit.first_segment, u.first_segment(0)); s < unit.last_segment; s++) {
    clear(u.scratch.segment, u.lines, u.padded);
    for (uint32_t key = larger(s * kKeySegment, first / kKeyTile * kKeyTile);
         key < (s + 1) * kKeySegment && key <= last; key += kKeyTile)
      walk_tile(u, key);
    fold_segment(u, s);
  }
  const Sums& sums = u.scratch.folded;
  for (uint32_t i = 0; i < u.lines; i++) {
    const float* output = sums.output + i * u.padded;
    if (unit.partial < 0) {
      write_context(sums.total[i], output, args.head_width, args.context + u.query(i));
    } else if (u.sees(i, unit.first_segment)) {
      float* slot = args.partials + (size_t(unit.partial) + i) * attention_slot_floats(args.head_width);
      slot[0] = sums.maximum[i], slot[1] = sums.total[i];
      std::memcpy(slot + 16, output, u.padded * sizeof(float));
    }
  }
}

void merge(const MergeArgs& merge) {
  const AttentionArgs& args = *merge.attention;
  const uint32_t group = args.heads / args.kv_heads;
  const size_t slot_floats = attention_slot_floats(args.head_width);
  const Unit u = {
      args, merge.units[0], {}, group, merge.units[0].rows * group, padded_width(args.head_width)};
  for (uint32_t i = 0; i < u.lines; i++) {
    const uint32_t first = u.first_segment(i);
    float* a = args.partials + (size_t(merge.units[first].partial) + i) * slot_floats;
    for (uint32_t s = first + 1; s < merge.segments; s++) {
      const AttentionUnit& unit = merge.units[s];
      if (!u.sees(i, s)) break;
      const float* b = args.partials + (size_t(unit.partial) + i) * slot_floats;
      fold(a, a + 1, a + 16, b[0], b[1], b + 16, u.padded);
    }
    write_context(a[1], a + 16, args.head_width, args.context + u.query(i));
  }
}

}  // namespace
}  // namespace riftco
