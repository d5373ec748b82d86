// Sixteen lanes as one AVX-512 register (F, BW, DQ, VL, VNNI and, where it is compiled for it, BF16). Included by vec.h only.
#pragma once
#include <immintrin.h>

namespace riftco {
namespace {

inline constexpr int kDotRows = 8, kAccumulators = 24, kFloatRows = 8, kFloatVectors = 3;

struct F16 {
  __m512 v;

  static RIFTCO_INLINE F16 splat(float x) { return {_mm512_set1_ps(x)}; }
  static RIFTCO_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static RIFTCO_INLINE F16 load_first(const float* p, uint32_t n);
  RIFTCO_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
  RIFTCO_INLINE void store_first(float* p, uint32_t n) const;
};
using M16 = __mmask16;
struct I16 {
  __m512i v;
};

RIFTCO_INLINE F16 operator+(F16 x, F16 y) { return {_mm512_add_ps(x.v, y.v)}; }
RIFTCO_INLINE F16 operator-(F16 x, F16 y) { return {_mm512_sub_ps(x.v, y.v)}; }
RIFTCO_INLINE F16 operator*(F16 x, F16 y) { return {_mm512_mul_ps(x.v, y.v)}; }
RIFTCO_INLINE F16 operator/(F16 x, F16 y) { return {_mm512_div_ps(x.v, y.v)}; }
RIFTCO_INLINE F16 fma(F16 x, F16 y, F16 z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
RIFTCO_INLINE F16 min_second(F16 x, F16 y) { return {_mm512_min_ps(x.v, y.v)}; }
RIFTCO_INLINE F16 max_second(F16 x, F16 y) { return {_mm512_max_ps(x.v, y.v)}; }
RIFTCO_INLINE F16 max_nan(F16 x, F16 y) {
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  return {_mm512_mask_mov_ps(_mm512_max_ps(x.v, y.v), nan, x.v)};
}
RIFTCO_INLINE F16 abs(F16 x) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), x.v)}; }
RIFTCO_INLINE F16 sqrt(F16 x) { return {_mm512_sqrt_ps(x.v)}; }
RIFTCO_INLINE F16 copy_sign(F16 x, F16 s) {
  const __m512 sign = _mm512_set1_ps(-0.0f);
  return {_mm512_or_ps(_mm512_andnot_ps(sign, x.v), _mm512_and_ps(sign, s.v))};
}
RIFTCO_INLINE F16 round_even(F16 x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
RIFTCO_INLINE F16 scale_by_power_of_two(F16 x, F16 n) { return {_mm512_scalef_ps(x.v, n.v)}; }
RIFTCO_INLINE M16 less(F16 x, F16 y) { return _mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ); }
RIFTCO_INLINE M16 first_lanes(uint32_t n) { return M16(n < 16 ? (1u << n) - 1 : 0xFFFF); }
RIFTCO_INLINE F16 select(M16 m, F16 yes, F16 no) { return {_mm512_mask_blend_ps(m, no.v, yes.v)}; }
RIFTCO_INLINE F16 F16::load_first(const float* p, uint32_t n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
RIFTCO_INLINE void F16::store_first(float* p, uint32_t n) const {
  _mm512_mask_storeu_ps(p, first_lanes(n), v);
}
RIFTCO_INLINE float sum(F16 x) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
RIFTCO_INLINE float largest(F16 x) {
  x = max_nan(x, {_mm512_shuffle_f32x4(x.v, x.v, 0x4E)});
  x = max_nan(x, {_mm512_shuffle_f32x4(x.v, x.v, 0xB1)});
  x = max_nan(x, {_mm512_permute_ps(x.v, 0x4E)});
  x = max_nan(x, {_mm512_permute_ps(x.v, 0xB1)});
  return _mm512_cvtss_f32(x.v);
}
RIFTCO_INLINE float largest_abs(F16 x, F16 y) {  // as integers: absolute values keep their order
  const __m512i m = _mm512_max_epi32(_mm512_castps_si512(abs(x).v), _mm512_castps_si512(abs(y).v));
  return __builtin_bit_cast(float, _mm512_reduce_max_epi32(m));
}

RIFTCO_INLINE F16 load16(const float* p) { return F16::load(p); }
RIFTCO_INLINE __m256i load16x16bit(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
RIFTCO_INLINE F16 load16(const Half* p) { return {_mm512_cvtph_ps(load16x16bit(p))}; }
RIFTCO_INLINE F16 load16(const BFloat* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load16x16bit(p)), 16))};
}
RIFTCO_INLINE F16 load_first(const BFloat* p) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(-65536)))};
}
RIFTCO_INLINE F16 load_second(const BFloat* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
#ifdef __AVX512BF16__
inline constexpr bool kPairProducts = true;
// The instruction takes the upper half of a pair first; it rounds to nearest even and flushes subnormal numbers.
RIFTCO_INLINE F16 add_products(F16 a, Pair x, const BFloat* w) {
  const __m512i pairs = _mm512_loadu_si512(w), all = _mm512_set1_epi32(int32_t(x.bits));
  return {_mm512_dpbf16_ps(a.v, __builtin_bit_cast(__m512bh, all), __builtin_bit_cast(__m512bh, pairs))};
}
#else
inline constexpr bool kPairProducts = false;
#endif
RIFTCO_INLINE void store16(F16 x, float* p) { x.store(p); }
RIFTCO_INLINE void store16x16bit(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
RIFTCO_INLINE void store16(F16 x, Half* p) {
  store16x16bit(p, _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
RIFTCO_INLINE void store16(F16 x, BFloat* p) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  store16x16bit(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
}

RIFTCO_INLINE F16 to_float(I16 x) { return {_mm512_cvtepi32_ps(x.v)}; }

RIFTCO_INLINE I16 minus(I16 x, int32_t y) { return {_mm512_sub_epi32(x.v, _mm512_set1_epi32(y))}; }
RIFTCO_INLINE __m128i load16x8bit(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
RIFTCO_INLINE F16 load_bytes_unsigned(const uint8_t* p) {
  return to_float({_mm512_cvtepu8_epi32(load16x8bit(p))});
}
RIFTCO_INLINE F16 load_bytes_signed(const uint8_t* p) {
  return to_float({_mm512_cvtepi8_epi32(load16x8bit(p))});
}

RIFTCO_INLINE BlockSums store_int8(F16 x, F16 y, int8_t* q) {
  const __m512i least = _mm512_set1_epi32(-127);
  const __m512i a = _mm512_max_epi32(_mm512_cvtps_epi32(x.v), least);
  const __m512i b = _mm512_max_epi32(_mm512_cvtps_epi32(y.v), least);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtsepi32_epi8(a));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm512_cvtsepi32_epi8(b));
  return {_mm512_reduce_add_epi32(a), _mm512_reduce_add_epi32(b)};
}

RIFTCO_INLINE __m512i four_everywhere(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  return _mm512_set1_epi32(four);
}

template <int R>
RIFTCO_INLINE void dot_q4(const uint8_t* w, const int8_t* x, I16 (&total)[R]) {
  const __m512i nibble = _mm512_set1_epi8(15);
  RIFTCO_UNROLL
  for (int r = 0; r < R; r++) total[r].v = _mm512_setzero_si512();
  RIFTCO_UNROLL
  for (int j = 0; j < 4; j++) {
    const __m512i line = _mm512_load_si512(w + 64 * j);
    const __m512i low = _mm512_and_si512(line, nibble);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(line, 4), nibble);
    RIFTCO_UNROLL
    for (int r = 0; r < R; r++)
      total[r].v = _mm512_dpbusd_epi32(total[r].v, low, four_everywhere(x + 32 * r + 8 * j));
    RIFTCO_UNROLL
    for (int r = 0; r < R; r++)
      total[r].v = _mm512_dpbusd_epi32(total[r].v, high, four_everywhere(x + 32 * r + 8 * j + 4));
  }
}

template <int kHighBits, int kWord>
RIFTCO_INLINE __m512i with_high_bits(__m512i nibbles, __m512i high) {
  constexpr int kShift = high_shift<kHighBits>(kWord);
  if constexpr (kShift < 0) {
    high = _mm512_srli_epi16(high, -kShift);
  } else {
    high = _mm512_slli_epi16(high, kShift);
  }
  nibbles = _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
  return _mm512_or_si512(nibbles, _mm512_and_si512(high, _mm512_set1_epi8(char(kHighMask[kHighBits]))));
}

template <int R, int kHighBits, int kFirst, int kWords>
RIFTCO_INLINE void dot_wide(const uint8_t* w, const int8_t* x, I16 (&total)[R]) {
  RIFTCO_UNROLL
  for (int r = 0; r < R; r++) total[r].v = _mm512_setzero_si512();
  each_second_word<kFirst, kFirst + kWords>([&]<int kWord>() __attribute__((always_inline)) {
    const __m512i line = _mm512_load_si512(w + 32 * kWord);
    const __m512i high = _mm512_load_si512(w + 256 + (kHighBits == 2 ? 64 * (kWord / 4) : 0));
    const __m512i w0 = with_high_bits<kHighBits, kWord>(line, high);
    const __m512i w1 = with_high_bits<kHighBits, kWord + 1>(_mm512_srli_epi16(line, 4), high);
    RIFTCO_UNROLL
    for (int r = 0; r < R; r++)
      total[r].v = _mm512_dpbusd_epi32(total[r].v, w0, four_everywhere(x + 32 * r + 4 * kWord));
    RIFTCO_UNROLL
    for (int r = 0; r < R; r++)
      total[r].v = _mm512_dpbusd_epi32(total[r].v, w1, four_everywhere(x + 32 * r + 4 * kWord + 4));
  });
}

// The weights plus 128 are unsigned; what that adds, 128 times the sum of the activations, is taken off at the start.
template <int R>
RIFTCO_INLINE void dot_q8(const int8_t* w, const int8_t* x, const RowScale* scale, I16 (&total)[R]) {
  const __m512i flip = _mm512_set1_epi8(-128);
  RIFTCO_UNROLL
  for (int r = 0; r < R; r++) total[r].v = _mm512_set1_epi32(-128 * scale[r].sum);
  RIFTCO_UNROLL
  for (int j = 0; j < 8; j++) {
    const __m512i line = _mm512_xor_si512(_mm512_load_si512(w + 64 * j), flip);
    RIFTCO_UNROLL
    for (int r = 0; r < R; r++)
      total[r].v = _mm512_dpbusd_epi32(total[r].v, line, four_everywhere(x + 32 * r + 4 * j));
  }
}

}  // namespace
}  // namespace riftco
