// The inside of a cache page, and what writes and reads single positions: rotation, store, kv_read.
//
//   page  [layer][kv_head]{keys [head_width][page_size], values [page_size][padded width]}, then 16 elements that
//         vectors of keys may run into
#pragma once
#include "backend/cpu/norm.h"
#include "core/math.h"

namespace riftco {
namespace {

RIFTCO_INLINE size_t padded_width(uint32_t head_width) { return round_up(head_width, 16); }
RIFTCO_INLINE size_t head_elements(const KvGeometry& g) {
  return g.page_size * (g.head_width + padded_width(g.head_width));
}

size_t kv_page_bytes(const KvGeometry& g) {
  return round_up((size_t(g.layers) * g.kv_heads * head_elements(g) + 16) * float_size(g.element), 64);
}

// fn.operator()<T>() with the stored type of an element.
template <class Fn>
RIFTCO_INLINE auto with_element(DType element, Fn fn) {
  if (element == DType::f16) return fn.template operator()<Half>();
  if (element == DType::bf16) return fn.template operator()<BFloat>();
  return fn.template operator()<float>();
}

// One head of one layer in the page that holds a position. Key: dim d at key[d * page_size]; value: value[d].
template <class T>
struct HeadSlot {
  T* key;
  T* value;
};
template <class T>
RIFTCO_INLINE HeadSlot<T> head_slot(const CacheView& view, uint32_t layer, uint32_t kv_head,
                                    uint32_t position) {
  const KvGeometry& g = *view.geometry;
  T* head = reinterpret_cast<T*>(view.pages[position / g.page_size]) +
            (size_t(layer) * g.kv_heads + kv_head) * head_elements(g);
  const size_t offset = position % g.page_size;
  return {head + offset, head + size_t(g.head_width) * g.page_size + offset * padded_width(g.head_width)};
}

template <class T>
void read_head(const HeadSlot<T>& slot, const KvGeometry& g, float* key, float* value) {
  for (uint32_t d = 0; d < g.head_width; d += 16) {
    const uint32_t n = smaller(16, g.head_width - d);
    T across[16] = {};
    for (uint32_t i = 0; i < n; i++) across[i] = slot.key[size_t(d + i) * g.page_size];
    load16(across).store_first(key + d, n);
    load16(slot.value + d).store_first(value + d, n);
  }
}

// False where a value is not finite, as it was given or as it was rounded.
template <class T>
bool write_head(const HeadSlot<T>& slot, const KvGeometry& g, const float* key, const float* value) {
  F16 most = F16::splat(0);
  for (uint32_t d = 0; d < g.head_width; d += 16) {
    const uint32_t n = smaller(16, g.head_width - d);
    T across[16];
    store16(F16::load_first(key + d, n), across);
    store16(F16::load_first(value + d, n), slot.value + d);  // with zeros up to the padded width
    most = max_nan(most, max_nan(abs(load16(across)), abs(load16(slot.value + d))));
    for (uint32_t i = 0; i < n; i++) slot.key[size_t(d + i) * g.page_size] = across[i];
  }
  return largest(most) < __builtin_inff();
}

void kv_read(const CacheView& view, uint32_t layer, uint32_t position, float* keys, float* values) {
  const KvGeometry& g = *view.geometry;
  with_element(g.element, [&]<class T>() {
    for (uint32_t h = 0; h < g.kv_heads; h++)
      read_head(head_slot<T>(view, layer, h, position), g, keys + size_t(h) * g.head_width,
                values + size_t(h) * g.head_width);
  });
}

void rotary(const RotaryArgs& args, Share share) {
  const Range units = part(size_t(args.rows) * args.pairs, share);
  for (size_t u = units.begin; u < units.end; u++) {
    const size_t row = u / args.pairs, pair = u % args.pairs;
    double sine, cosine;
    math::sin_cos(double(args.positions[row]) * args.inverse_frequencies[pair], &sine, &cosine);
    float* out = args.cos_sin + row * 2 * args.pairs + pair;
    out[0] = float(args.scale * cosine);
    out[args.pairs] = float(args.scale * sine);
  }
}

// x[i], x[i + pairs] = x[i] cos - x[i + pairs] sin, x[i + pairs] cos + x[i] sin; every product and sum is rounded.
void rotate(float* x, const float* cos_sin, uint32_t pairs) {
  for (uint32_t i = 0; i < pairs; i += 16) {
    const uint32_t n = smaller(16, pairs - i);
    const F16 c = F16::load_first(cos_sin + i, n), s = F16::load_first(cos_sin + pairs + i, n);
    const F16 a = F16::load_first(x + i, n), b = F16::load_first(x + pairs + i, n);
    (a * c - b * s).store_first(x + i, n);
    (b * c + a * s).store_first(x + pairs + i, n);
  }
}

bool all_finite(const float* values, size_t count) {
  F16 most = F16::splat(0);
  for (size_t i = 0; i < count; i += 16)
    most = max_nan(most, abs(i + 16 <= count ? F16::load(values + i)
                                             : F16::load_first(values + i, uint32_t(count - i))));
  return largest(most) < __builtin_inff();
}

// Work is cut by head, then by row: neighbouring positions share the cache lines of a page's keys. Queries and what goes into
// the cache are cut apart, because a write to a page waits for memory.
bool store(const StoreArgs& args, Share share) {
  const uint32_t width = args.head_width;
  const auto turn = [&](float* x, const float* norm, size_t row) {
    if (norm) normalise_head(x, norm, width, args.norm_epsilon);
    rotate(x, args.cos_sin + row * 2 * args.pairs, args.pairs);
  };
  const Range queries = part(size_t(args.heads) * args.row_count, share);
  for (size_t u = queries.begin; u < queries.end; u++) {
    const size_t head = u / args.row_count, row = u % args.row_count;
    turn(args.q + (row * args.heads + head) * width, args.q_norm, row);
  }
  bool finite = true;
  const Range keys = part(size_t(args.kv_heads) * args.row_count, share);
  for (size_t u = keys.begin; u < keys.end; u++) {
    const size_t head = u / args.row_count, row = u % args.row_count;
    const size_t at = (row * args.kv_heads + head) * width;
    turn(args.k + at, args.k_norm, row);
    const CacheView& view = *args.rows[row].view;
    finite &= with_element(view.geometry->element, [&]<class T>() {
      return write_head(head_slot<T>(view, args.layer, uint32_t(head), args.rows[row].position),
                        *view.geometry, args.k + at, args.v + at);
    });
  }
  return finite;
}

}  // namespace
}  // namespace riftco
