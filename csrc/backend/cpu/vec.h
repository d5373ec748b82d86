// Sixteen floats as the kernels see them. One of the wrapper headers defines, in an unnamed namespace of its own:
//
//   F16           splat, load, load_first (n lanes, the others 0), store, store_first, + - * /, fma, abs, sqrt, copy_sign,
//                 min_second and max_second (the second where one is NaN), max_nan (NaN where one is NaN),
//                 round_even, scale_by_power_of_two, less -> M16, first_lanes(n) -> M16, select(mask, yes, no)
//                 sum: the tree 8+8, 4+4, 2+2, 1+1; largest: max_nan over the lanes
//                 largest_abs: of all lanes by the order of bits, so that infinity and NaN win
//   load16        16 elements of a stored type (float, Half, BFloat), widened
//   load_first, load_second  of 16 pairs of BFloat (layout.h: bf16 panels), widened
//   kPairProducts whether the processor multiplies pairs of BFloat; then add_products: for each pair a = fma(x, w, a) over the
//                 first, then over the second
//   store16       16 floats as such elements, rounded to nearest even; overflow is infinity, NaN stays NaN
//   load_bytes_unsigned, load_bytes_signed  16 bytes, widened
//   I16           16 exact integers; to_float, minus (the same from each)
//   store_int8    32 floats rounded to even and clamped to +-127; returns their sums
//   dot_q4, dot_q8  16 outputs x R rows over one block of 32 (layouts: layout.h)
//   dot_wide      the same over words kFirst .. of 4 inputs, whose weights have 1 or 2 bits above the nibble
//   kDotRows      rows of an int8 tile
//   kAccumulators F16 that fit in registers beside a few operands
//   kFloatRows    rows of a float tile
//   kFloatVectors F16 across a float panel
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__clang__)
#define RIFTCO_UNROLL _Pragma("unroll")
#else
#define RIFTCO_UNROLL _Pragma("GCC unroll 32")
#endif
#define RIFTCO_INLINE __attribute__((always_inline)) inline

namespace riftco {
namespace {

struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};

struct Pair {  // two BFloat, the first in the upper half
  uint32_t bits;
};

RIFTCO_INLINE float max_nan(float a, float b) { return a != a || a > b ? a : b; }

struct RowScale {  // of one row of an int8 block
  float scale;
  float scaled_sum;  // scale * float(sum)
  int32_t sum;
  int32_t low_sum;  // of the first 16
};
struct BlockSums {
  int32_t low, high;
};

// Calls fn<w>() for w = kWord, kWord + 2, ... below kEnd.
template <int kWord, int kEnd, class Fn>
RIFTCO_INLINE void each_second_word(Fn fn) {
  if constexpr (kWord < kEnd) {
    fn.template operator()<kWord>();
    each_second_word<kWord + 2, kEnd>(fn);
  }
}

// How far left the high bits of a word lie from their place above the nibble.
template <int kHighBits>
RIFTCO_INLINE constexpr int high_shift(int word) {
  return kHighBits == 1 ? 4 - word : 4 - 2 * (word % 4);
}
inline constexpr int kHighMask[] = {0, 0x10, 0x30};

}  // namespace
}  // namespace riftco

#include RIFTCO_VEC_HEADER
