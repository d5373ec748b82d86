// Sixteen lanes as two AVX2 registers (with FMA and F16C). Included by vec.h only.
#pragma once
#include <immintrin.h>

namespace riftco {
namespace {

inline constexpr int kDotRows = 6, kAccumulators = 6, kFloatRows = 6, kFloatVectors = 2;

struct F16 {
  __m256 a, b;  // lanes 0..7, 8..15

  static RIFTCO_INLINE F16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static RIFTCO_INLINE F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static RIFTCO_INLINE F16 load_first(const float* p, uint32_t n);
  RIFTCO_INLINE void store(float* p) const { _mm256_storeu_ps(p, a), _mm256_storeu_ps(p + 8, b); }
  RIFTCO_INLINE void store_first(float* p, uint32_t n) const;
};
struct M16 {
  __m256 a, b;
};
struct I16 {
  __m256i a, b;
};

RIFTCO_INLINE F16 operator+(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
RIFTCO_INLINE F16 operator-(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
RIFTCO_INLINE F16 operator*(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
RIFTCO_INLINE F16 operator/(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
RIFTCO_INLINE F16 fma(F16 x, F16 y, F16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
RIFTCO_INLINE F16 min_second(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
RIFTCO_INLINE F16 max_second(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
RIFTCO_INLINE __m256 max_nan(__m256 x, __m256 y) {
  return _mm256_blendv_ps(_mm256_max_ps(x, y), x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
RIFTCO_INLINE F16 max_nan(F16 x, F16 y) { return {max_nan(x.a, y.a), max_nan(x.b, y.b)}; }
RIFTCO_INLINE F16 abs(F16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
RIFTCO_INLINE F16 sqrt(F16 x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
RIFTCO_INLINE F16 copy_sign(F16 x, F16 s) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(sign, x.a), _mm256_and_ps(sign, s.a)),
          _mm256_or_ps(_mm256_andnot_ps(sign, x.b), _mm256_and_ps(sign, s.b))};
}
RIFTCO_INLINE F16 round_even(F16 x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kNearest), _mm256_round_ps(x.b, kNearest)};
}
RIFTCO_INLINE __m256 scale_by_power_of_two(__m256 x, __m256 n) {
  const __m256i e = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(e, 1), bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(e, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}
RIFTCO_INLINE F16 scale_by_power_of_two(F16 x, F16 n) {
  return {scale_by_power_of_two(x.a, n.a), scale_by_power_of_two(x.b, n.b)};
}
RIFTCO_INLINE M16 less(F16 x, F16 y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
RIFTCO_INLINE M16 first_lanes(uint32_t n) {
  const __m256i count = _mm256_set1_epi32(int32_t(n)), lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i upper = _mm256_add_epi32(lane, _mm256_set1_epi32(8));
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, upper))};
}
RIFTCO_INLINE F16 select(M16 m, F16 yes, F16 no) {
  return {_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}
RIFTCO_INLINE F16 F16::load_first(const float* p, uint32_t n) {
  const M16 m = first_lanes(n);
  return {_mm256_maskload_ps(p, _mm256_castps_si256(m.a)),
          _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.b))};
}
RIFTCO_INLINE void F16::store_first(float* p, uint32_t n) const {
  const M16 m = first_lanes(n);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.a), a);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.b), b);
}
RIFTCO_INLINE float sum(F16 x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
RIFTCO_INLINE float largest(F16 x) {
  __m256 m = max_nan(x.a, x.b);
  m = max_nan(m, _mm256_permute2f128_ps(m, m, 1));
  m = max_nan(m, _mm256_permute_ps(m, 0x4E));
  m = max_nan(m, _mm256_permute_ps(m, 0xB1));
  return _mm256_cvtss_f32(m);
}
RIFTCO_INLINE float largest_abs(F16 x, F16 y) {  // as integers: absolute values keep their order
  x = abs(x), y = abs(y);
  __m256i m = _mm256_max_epi32(_mm256_castps_si256(x.a), _mm256_castps_si256(x.b));
  m = _mm256_max_epi32(m, _mm256_max_epi32(_mm256_castps_si256(y.a), _mm256_castps_si256(y.b)));
  m = _mm256_max_epi32(m, _mm256_permute2x128_si256(m, m, 1));
  m = _mm256_max_epi32(m, _mm256_shuffle_epi32(m, 0x4E));
  m = _mm256_max_epi32(m, _mm256_shuffle_epi32(m, 0xB1));
  return _mm256_cvtss_f32(_mm256_castsi256_ps(m));
}

RIFTCO_INLINE F16 load16(const float* p) { return F16::load(p); }
RIFTCO_INLINE __m128i load8x16bit(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
RIFTCO_INLINE F16 load16(const Half* p) {
  return {_mm256_cvtph_ps(load8x16bit(p)), _mm256_cvtph_ps(load8x16bit(p + 8))};
}
RIFTCO_INLINE __m256 widen_bf16(__m128i h) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
RIFTCO_INLINE F16 load16(const BFloat* p) {
  return {widen_bf16(load8x16bit(p)), widen_bf16(load8x16bit(p + 8))};
}
inline constexpr bool kPairProducts = false;
RIFTCO_INLINE __m256i load8pairs(const BFloat* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
RIFTCO_INLINE F16 load_first(const BFloat* p) {
  const __m256 upper = _mm256_castsi256_ps(_mm256_set1_epi32(-65536));
  return {_mm256_and_ps(_mm256_castsi256_ps(load8pairs(p)), upper),
          _mm256_and_ps(_mm256_castsi256_ps(load8pairs(p + 16)), upper)};
}
RIFTCO_INLINE F16 load_second(const BFloat* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(load8pairs(p), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(load8pairs(p + 16), 16))};
}
RIFTCO_INLINE void store16(F16 x, float* p) { x.store(p); }
RIFTCO_INLINE void store8x16bit(void* p, __m128i v) { _mm_storeu_si128(static_cast<__m128i*>(p), v); }
RIFTCO_INLINE void store16(F16 x, Half* p) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  store8x16bit(p, _mm256_cvtps_ph(x.a, kNearest)), store8x16bit(p + 8, _mm256_cvtps_ph(x.b, kNearest));
}
RIFTCO_INLINE __m256i narrow_bf16(__m256 x) {  // in the low halves of the lanes
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
RIFTCO_INLINE void store16(F16 x, BFloat* p) {
  const __m256i both = _mm256_packus_epi32(narrow_bf16(x.a), narrow_bf16(x.b));  // by 128-bit lanes
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(both, 0xD8));
}

RIFTCO_INLINE F16 to_float(I16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

RIFTCO_INLINE I16 minus(I16 v, int32_t x) {
  const __m256i all = _mm256_set1_epi32(x);
  return {_mm256_sub_epi32(v.a, all), _mm256_sub_epi32(v.b, all)};
}
RIFTCO_INLINE __m128i load8x8bit(const uint8_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
RIFTCO_INLINE F16 load_bytes_unsigned(const uint8_t* p) {
  return to_float({_mm256_cvtepu8_epi32(load8x8bit(p)), _mm256_cvtepu8_epi32(load8x8bit(p + 8))});
}
RIFTCO_INLINE F16 load_bytes_signed(const uint8_t* p) {
  return to_float({_mm256_cvtepi8_epi32(load8x8bit(p)), _mm256_cvtepi8_epi32(load8x8bit(p + 8))});
}

RIFTCO_INLINE int32_t sum_four(__m128i v) {
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xB1)));
}
RIFTCO_INLINE BlockSums store_int8(F16 x, F16 y, int8_t* q) {
  const __m256i x0 = _mm256_cvtps_epi32(x.a), x1 = _mm256_cvtps_epi32(x.b);
  const __m256i y0 = _mm256_cvtps_epi32(y.a), y1 = _mm256_cvtps_epi32(y.b);
  __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(x0, x1), _mm256_packs_epi32(y0, y1));
  bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  bytes = _mm256_max_epi8(bytes, _mm256_set1_epi8(-127));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
  const __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  return {sum_four(_mm256_castsi256_si128(quads)), sum_four(_mm256_extracti128_si256(quads, 1))};
}

RIFTCO_INLINE __m256i load_bytes(const void* p) { return _mm256_load_si256(static_cast<const __m256i*>(p)); }
RIFTCO_INLINE __m256i four_everywhere(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  return _mm256_set1_epi32(four);
}

// Keeps a sum as one chain in one register: gcc would rather build a tree of integer sums and spill its leaves.
RIFTCO_INLINE __m256i chained(__m256i v) {
  __asm__("" : "+x"(v));
  return v;
}

// A pair of products is at most 2 x 15 x 127 and a block adds eight of them: below 2^15.
template <int R>
RIFTCO_INLINE void dot_q4(const uint8_t* w, const int8_t* x, I16 (&total)[R]) {
  const __m256i nibble = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
  __m256i a[R], b[R];
  RIFTCO_UNROLL
  for (int j = 0; j < 8; j++) {
    __m256i w0 = load_bytes(w + 64 * (j / 2)), w1 = load_bytes(w + 64 * (j / 2) + 32);
    if (j % 2) w0 = _mm256_srli_epi16(w0, 4), w1 = _mm256_srli_epi16(w1, 4);
    w0 = _mm256_and_si256(w0, nibble), w1 = _mm256_and_si256(w1, nibble);
    RIFTCO_UNROLL
    for (int r = 0; r < R; r++) {
      const __m256i xr = four_everywhere(x + 32 * r + 4 * j);
      const __m256i p0 = _mm256_maddubs_epi16(w0, xr), p1 = _mm256_maddubs_epi16(w1, xr);
      a[r] = chained(j ? _mm256_add_epi16(a[r], p0) : p0);
      b[r] = chained(j ? _mm256_add_epi16(b[r], p1) : p1);
    }
  }
  RIFTCO_UNROLL
  for (int r = 0; r < R; r++) total[r] = {_mm256_madd_epi16(a[r], one), _mm256_madd_epi16(b[r], one)};
}

template <int kHighBits, int kWord>
RIFTCO_INLINE __m256i with_high_bits(__m256i nibbles, __m256i high) {
  constexpr int kShift = high_shift<kHighBits>(kWord);
  high = kShift < 0 ? _mm256_srli_epi16(high, kShift < 0 ? -kShift : 0)
                    : _mm256_slli_epi16(high, kShift < 0 ? 0 : kShift);
  nibbles = _mm256_and_si256(nibbles, _mm256_set1_epi8(15));
  return _mm256_or_si256(nibbles, _mm256_and_si256(high, _mm256_set1_epi8(char(kHighMask[kHighBits]))));
}

// A pair of products is at most 2 x 63 x 127: two of them are below 2^15.
template <int R, int kHighBits, int kFirst, int kWords>
RIFTCO_INLINE void dot_wide(const uint8_t* w, const int8_t* x, I16 (&total)[R]) {
  const __m256i one = _mm256_set1_epi16(1);
  RIFTCO_UNROLL
  for (int r = 0; r < R; r++) total[r] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  each_second_word<kFirst, kFirst + kWords>([&]<int kWord>() __attribute__((always_inline)) {
    const uint8_t* high = w + 256 + (kHighBits == 2 ? 64 * (kWord / 4) : 0);
    const __m256i a = load_bytes(w + 32 * kWord), b = load_bytes(w + 32 * kWord + 32);
    const __m256i high_a = load_bytes(high), high_b = load_bytes(high + 32);
    const __m256i a0 = with_high_bits<kHighBits, kWord>(a, high_a);
    const __m256i b0 = with_high_bits<kHighBits, kWord>(b, high_b);
    const __m256i a1 = with_high_bits<kHighBits, kWord + 1>(_mm256_srli_epi16(a, 4), high_a);
    const __m256i b1 = with_high_bits<kHighBits, kWord + 1>(_mm256_srli_epi16(b, 4), high_b);
    RIFTCO_UNROLL
    for (int r = 0; r < R; r++) {
      const __m256i x0 = four_everywhere(x + 32 * r + 4 * kWord),
                    x1 = four_everywhere(x + 32 * r + 4 * kWord + 4);
      const __m256i p = _mm256_add_epi16(_mm256_maddubs_epi16(a0, x0), _mm256_maddubs_epi16(a1, x1));
      const __m256i q = _mm256_add_epi16(_mm256_maddubs_epi16(b0, x0), _mm256_maddubs_epi16(b1, x1));
      total[r].a = chained(_mm256_add_epi32(total[r].a, _mm256_madd_epi16(p, one)));
      total[r].b = chained(_mm256_add_epi32(total[r].b, _mm256_madd_epi16(q, one)));
    }
  });
}

// |w| <= 128 unsigned times x with the sign of w: a pair is at most 2 x 128 x 127, so no sum saturates.
template <int R>
RIFTCO_INLINE void dot_q8(const int8_t* w, const int8_t* x, const RowScale*, I16 (&total)[R]) {
  const __m256i one = _mm256_set1_epi16(1);
  RIFTCO_UNROLL
  for (int r = 0; r < R; r++) total[r] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  RIFTCO_UNROLL
  for (int j = 0; j < 8; j++) {
    const __m256i w0 = load_bytes(w + 64 * j), w1 = load_bytes(w + 64 * j + 32);
    const __m256i abs0 = _mm256_abs_epi8(w0), abs1 = _mm256_abs_epi8(w1);
    RIFTCO_UNROLL
    for (int r = 0; r < R; r++) {
      const __m256i xr = four_everywhere(x + 32 * r + 4 * j);
      const __m256i p0 = _mm256_maddubs_epi16(abs0, _mm256_sign_epi8(xr, w0));
      const __m256i p1 = _mm256_maddubs_epi16(abs1, _mm256_sign_epi8(xr, w1));
      total[r].a = chained(_mm256_add_epi32(total[r].a, _mm256_madd_epi16(p0, one)));
      total[r].b = chained(_mm256_add_epi32(total[r].b, _mm256_madd_epi16(p1, one)));
    }
  }
}

}  // namespace
}  // namespace riftco
