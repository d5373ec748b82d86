// Sixteen lanes as four NEON registers, with or without the instructions for dot products and
// for products of 2 x 8 bytes. Included by vec.h only.
#pragma once
#include <arm_neon.h>

namespace riftco {
namespace {

inline constexpr int kDotRows = 4, kAccumulators = 6, kFloatRows = 6, kFloatVectors = 1;

// A vector of the same kind, lane group by lane group.
template <class V, class Fn>
RIFTCO_INLINE V each_quarter(Fn fn) {
  return {{fn(0), fn(1), fn(2), fn(3)}};
}

struct F16 {
  float32x4_t v[4];  // lanes 0..3, 4..7, 8..11, 12..15

  static RIFTCO_INLINE F16 splat(float x) {
    return each_quarter<F16>([&](int) { return vdupq_n_f32(x); });
  }
  static RIFTCO_INLINE F16 load(const float* p) {
    return each_quarter<F16>([&](int i) { return vld1q_f32(p + 4 * i); });
  }
  static RIFTCO_INLINE F16 load_first(const float* p, uint32_t n) {
    float lanes[16] = {};
    std::memcpy(lanes, p, 4 * (n < 16 ? n : 16));
    return load(lanes);
  }
  RIFTCO_INLINE void store(float* p) const {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, v[i]);
  }
  RIFTCO_INLINE void store_first(float* p, uint32_t n) const {
    float lanes[16];
    store(lanes);
    std::memcpy(p, lanes, 4 * (n < 16 ? n : 16));
  }
};
struct M16 {
  uint32x4_t v[4];
};
struct I16 {
  int32x4_t v[4];
};

RIFTCO_INLINE F16 operator+(F16 x, F16 y) {
  return each_quarter<F16>([&](int i) { return vaddq_f32(x.v[i], y.v[i]); });
}
RIFTCO_INLINE F16 operator-(F16 x, F16 y) {
  return each_quarter<F16>([&](int i) { return vsubq_f32(x.v[i], y.v[i]); });
}
RIFTCO_INLINE F16 operator*(F16 x, F16 y) {
  return each_quarter<F16>([&](int i) { return vmulq_f32(x.v[i], y.v[i]); });
}
RIFTCO_INLINE F16 operator/(F16 x, F16 y) {
  return each_quarter<F16>([&](int i) { return vdivq_f32(x.v[i], y.v[i]); });
}
RIFTCO_INLINE F16 fma(F16 x, F16 y, F16 z) {
  return each_quarter<F16>([&](int i) { return vfmaq_f32(z.v[i], x.v[i], y.v[i]); });
}
// Comparison and choice: the instructions for minimum and maximum treat NaN in other ways.
RIFTCO_INLINE F16 min_second(F16 x, F16 y) {
  return each_quarter<F16>([&](int i) { return vbslq_f32(vcltq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]); });
}
RIFTCO_INLINE F16 max_second(F16 x, F16 y) {
  return each_quarter<F16>([&](int i) { return vbslq_f32(vcgtq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]); });
}
RIFTCO_INLINE float32x4_t max_nan(float32x4_t x, float32x4_t y) {
  const uint32x4_t first = vorrq_u32(vcgtq_f32(x, y), vmvnq_u32(vceqq_f32(x, x)));
  return vbslq_f32(first, x, y);
}
RIFTCO_INLINE F16 max_nan(F16 x, F16 y) {
  return each_quarter<F16>([&](int i) { return max_nan(x.v[i], y.v[i]); });
}
RIFTCO_INLINE F16 abs(F16 x) {
  return each_quarter<F16>([&](int i) { return vabsq_f32(x.v[i]); });
}
RIFTCO_INLINE F16 sqrt(F16 x) {
  return each_quarter<F16>([&](int i) { return vsqrtq_f32(x.v[i]); });
}
RIFTCO_INLINE F16 copy_sign(F16 x, F16 s) {
  const uint32x4_t sign = vdupq_n_u32(0x80000000);
  return each_quarter<F16>([&](int i) { return vbslq_f32(sign, s.v[i], x.v[i]); });
}
RIFTCO_INLINE F16 round_even(F16 x) {
  return each_quarter<F16>([&](int i) { return vrndnq_f32(x.v[i]); });
}
RIFTCO_INLINE float32x4_t scale_by_power_of_two(float32x4_t x, float32x4_t n) {
  const int32x4_t e = vcvtnq_s32_f32(n), half = vshrq_n_s32(e, 1), bias = vdupq_n_s32(127);
  const int32x4_t first = vshlq_n_s32(vaddq_s32(half, bias), 23);
  const int32x4_t second = vshlq_n_s32(vaddq_s32(vsubq_s32(e, half), bias), 23);
  return vmulq_f32(vmulq_f32(x, vreinterpretq_f32_s32(first)), vreinterpretq_f32_s32(second));
}
RIFTCO_INLINE F16 scale_by_power_of_two(F16 x, F16 n) {
  return each_quarter<F16>([&](int i) { return scale_by_power_of_two(x.v[i], n.v[i]); });
}
RIFTCO_INLINE M16 less(F16 x, F16 y) {
  return each_quarter<M16>([&](int i) { return vcltq_f32(x.v[i], y.v[i]); });
}
RIFTCO_INLINE M16 first_lanes(uint32_t n) {
  constexpr uint32_t kLanes[4] = {0, 1, 2, 3};
  const uint32x4_t lane = vld1q_u32(kLanes);
  return each_quarter<M16>(
      [&](int i) { return vcltq_u32(vaddq_u32(lane, vdupq_n_u32(4 * uint32_t(i))), vdupq_n_u32(n)); });
}
RIFTCO_INLINE F16 select(M16 m, F16 yes, F16 no) {
  return each_quarter<F16>([&](int i) { return vbslq_f32(m.v[i], yes.v[i], no.v[i]); });
}
RIFTCO_INLINE float sum(F16 x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
RIFTCO_INLINE float largest(F16 x) {
  const float32x4_t four = max_nan(max_nan(x.v[0], x.v[1]), max_nan(x.v[2], x.v[3]));
  float most = vgetq_lane_f32(four, 0);
  most = max_nan(most, vgetq_lane_f32(four, 1));
  most = max_nan(most, vgetq_lane_f32(four, 2));
  return max_nan(most, vgetq_lane_f32(four, 3));
}
RIFTCO_INLINE float largest_abs(F16 x, F16 y) {  // as integers: absolute values keep their order
  int32x4_t most = vdupq_n_s32(0);
  for (int i = 0; i < 4; i++) {
    most = vmaxq_s32(most, vreinterpretq_s32_f32(vabsq_f32(x.v[i])));
    most = vmaxq_s32(most, vreinterpretq_s32_f32(vabsq_f32(y.v[i])));
  }
  return __builtin_bit_cast(float, vmaxvq_s32(most));
}

RIFTCO_INLINE F16 load16(const float* p) { return F16::load(p); }
RIFTCO_INLINE uint16x4_t load4x16bit(const void* p) { return vld1_u16(static_cast<const uint16_t*>(p)); }
RIFTCO_INLINE F16 load16(const Half* p) {
  return each_quarter<F16>([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(load4x16bit(p + 4 * i))); });
}
RIFTCO_INLINE F16 load16(const BFloat* p) {
  return each_quarter<F16>(
      [&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(load4x16bit(p + 4 * i), 16)); });
}
inline constexpr bool kPairProducts = false;  // BFDOT and BFMMLA round their sums in a way of their own
RIFTCO_INLINE uint32x4_t load4pairs(const BFloat* p) {
  return vreinterpretq_u32_u16(vld1q_u16(reinterpret_cast<const uint16_t*>(p)));
}
RIFTCO_INLINE F16 load_first(const BFloat* p) {
  return each_quarter<F16>([&](int i) {
    return vreinterpretq_f32_u32(vandq_u32(load4pairs(p + 8 * i), vdupq_n_u32(0xFFFF0000)));
  });
}
RIFTCO_INLINE F16 load_second(const BFloat* p) {
  return each_quarter<F16>(
      [&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(load4pairs(p + 8 * i), 16)); });
}

RIFTCO_INLINE void store16(F16 x, float* p) { x.store(p); }
RIFTCO_INLINE void store4x16bit(void* p, uint16x4_t v) { vst1_u16(static_cast<uint16_t*>(p), v); }
RIFTCO_INLINE void store16(F16 x, Half* p) {
  for (int i = 0; i < 4; i++) store4x16bit(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
RIFTCO_INLINE void store16(F16 x, BFloat* p) {
  for (int i = 0; i < 4; i++) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x.v[i]);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    const uint32x4_t number = vceqq_f32(x.v[i], x.v[i]);
    store4x16bit(p + 4 * i, vshrn_n_u32(vbslq_u32(number, rounded, quiet), 16));
  }
}

RIFTCO_INLINE F16 to_float(I16 x) {
  return each_quarter<F16>([&](int i) { return vcvtq_f32_s32(x.v[i]); });
}

RIFTCO_INLINE I16 minus(I16 x, int32_t y) {
  return each_quarter<I16>([&](int i) { return vsubq_s32(x.v[i], vdupq_n_s32(y)); });
}
RIFTCO_INLINE F16 load_bytes_unsigned(const uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t halves[] = {vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes)};
  return each_quarter<F16>([&](int i) {
    const uint16x8_t half = halves[i / 2];
    return vcvtq_f32_u32(i % 2 ? vmovl_high_u16(half) : vmovl_u16(vget_low_u16(half)));
  });
}
RIFTCO_INLINE F16 load_bytes_signed(const uint8_t* p) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
  const int16x8_t halves[] = {vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)};
  return each_quarter<F16>([&](int i) {
    const int16x8_t half = halves[i / 2];
    return vcvtq_f32_s32(i % 2 ? vmovl_high_s16(half) : vmovl_s16(vget_low_s16(half)));
  });
}

RIFTCO_INLINE int8x16_t narrow_int8(F16 x) {
  const int16x8_t low = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(x.v[0])), vqmovn_s32(vcvtnq_s32_f32(x.v[1])));
  const int16x8_t high = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(x.v[2])), vqmovn_s32(vcvtnq_s32_f32(x.v[3])));
  return vmaxq_s8(vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)), vdupq_n_s8(-127));
}
RIFTCO_INLINE BlockSums store_int8(F16 x, F16 y, int8_t* q) {
  const int8x16_t a = narrow_int8(x), b = narrow_int8(y);
  vst1q_s8(q, a);
  vst1q_s8(q + 16, b);
  return {vaddlvq_s8(a), vaddlvq_s8(b)};
}

RIFTCO_INLINE int8x16_t four_everywhere(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

// total[o] += products of the bytes 4 o .. 4 o + 3. Two products are at most 2 x 128 x 127: below 2^15.
RIFTCO_INLINE int32x4_t add_dot(int32x4_t total, int8x16_t w, int8x16_t x) {
#ifdef __ARM_FEATURE_DOTPROD
  return vdotq_s32(total, w, x);
#else
  const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_high_s8(w, x);
  return vpadalq_s16(total, vpaddq_s16(low, high));
#endif
}

struct TwoWords {  // of 4 inputs each, of four outputs
  int8x16_t first, second;
};

#ifdef __ARM_FEATURE_MATMUL_INT8
// Eight bytes of two rows.
RIFTCO_INLINE int8x16_t two_rows(const int8_t* x, const int8_t* y) {
  return vcombine_s8(vld1_s8(x), vld1_s8(y));
}

// Tiles of two outputs by two rows; an odd last row is paired with itself.
template <int R, int kFirst, int kEnd, class Weights>
RIFTCO_INLINE void dot_row_pairs(const int8_t* x, I16 (&total)[R], Weights weights) {
  constexpr int kPairs = (R + 1) / 2;
  RIFTCO_UNROLL
  for (int i = 0; i < 4; i++) {
    int32x4_t low[kPairs], high[kPairs];  // outputs 0 and 1, 2 and 3: [output][row]
    RIFTCO_UNROLL
    for (int p = 0; p < kPairs; p++) low[p] = high[p] = vdupq_n_s32(0);
    each_second_word<kFirst, kEnd>([&]<int kWord>() __attribute__((always_inline)) {
      const TwoWords w = weights.template operator()<kWord>(i);
      const int32x4_t first = vreinterpretq_s32_s8(w.first), second = vreinterpretq_s32_s8(w.second);
      const int8x16_t w01 = vreinterpretq_s8_s32(vzip1q_s32(first, second));
      const int8x16_t w23 = vreinterpretq_s8_s32(vzip2q_s32(first, second));
      RIFTCO_UNROLL
      for (int p = 0; p < kPairs; p++) {
        const int8_t* row = x + 64 * p + 4 * kWord;
        const int8x16_t xs = two_rows(row, 2 * p + 1 < R ? row + 32 : row);
        low[p] = vmmlaq_s32(low[p], w01, xs);
        high[p] = vmmlaq_s32(high[p], w23, xs);
      }
    });
    RIFTCO_UNROLL
    for (int p = 0; p < kPairs; p++) {
      total[2 * p].v[i] = vuzp1q_s32(low[p], high[p]);
      if (2 * p + 1 < R) total[2 * p + 1].v[i] = vuzp2q_s32(low[p], high[p]);
    }
  }
}
#endif

// total[r] = products of row r with words kFirst .. kEnd - 1; weights<word>(i): this word and the next of outputs 4 i .. 4 i + 3.
template <int R, int kFirst, int kEnd, class Weights>
RIFTCO_INLINE void dot_words(const int8_t* x, I16 (&total)[R], Weights weights) {
#ifdef __ARM_FEATURE_MATMUL_INT8
  if constexpr (R > 1) return dot_row_pairs<R, kFirst, kEnd>(x, total, weights);
#endif
  for (int r = 0; r < R; r++) total[r] = each_quarter<I16>([](int) { return vdupq_n_s32(0); });
  each_second_word<kFirst, kEnd>([&]<int kWord>() __attribute__((always_inline)) {
    RIFTCO_UNROLL
    for (int i = 0; i < 4; i++) {
      const TwoWords w = weights.template operator()<kWord>(i);
      RIFTCO_UNROLL
      for (int r = 0; r < R; r++) {
        const int8_t* row = x + 32 * r + 4 * kWord;
        total[r].v[i] = add_dot(total[r].v[i], w.first, four_everywhere(row));
        total[r].v[i] = add_dot(total[r].v[i], w.second, four_everywhere(row + 4));
      }
    }
  });
}

template <int R>
RIFTCO_INLINE void dot_q4(const uint8_t* w, const int8_t* x, I16 (&total)[R]) {
  dot_words<R, 0, 8>(
      x, total, [w]<int kWord>(int i) __attribute__((always_inline)) {
        const uint8x16_t line = vld1q_u8(w + 32 * kWord + 16 * i);
        return TwoWords{vreinterpretq_s8_u8(vandq_u8(line, vdupq_n_u8(15))),
                        vreinterpretq_s8_u8(vshrq_n_u8(line, 4))};
      });
}

template <int R>
RIFTCO_INLINE void dot_q8(const int8_t* w, const int8_t* x, const RowScale*, I16 (&total)[R]) {
  dot_words<R, 0, 8>(
      x, total, [w]<int kWord>(int i) __attribute__((always_inline)) {
        const int8_t* line = w + 64 * kWord + 16 * i;
        return TwoWords{vld1q_s8(line), vld1q_s8(line + 64)};
      });
}

template <int kHighBits, int kWord>
RIFTCO_INLINE int8x16_t with_high_bits(uint8x16_t nibbles, uint8x16_t high) {
  constexpr int kShift = high_shift<kHighBits>(kWord);
  if constexpr (kShift < 0) {
    high = vshrq_n_u8(high, -kShift);
  } else {
    high = vshlq_n_u8(high, kShift);
  }
  return vreinterpretq_s8_u8(vorrq_u8(nibbles, vandq_u8(high, vdupq_n_u8(kHighMask[kHighBits]))));
}

template <int R, int kHighBits, int kFirst, int kWords>
RIFTCO_INLINE void dot_wide(const uint8_t* w, const int8_t* x, I16 (&total)[R]) {
  dot_words<R, kFirst, kFirst + kWords>(
      x, total, [w]<int kWord>(int i) __attribute__((always_inline)) {
        const uint8x16_t line = vld1q_u8(w + 32 * kWord + 16 * i);
        const uint8x16_t high = vld1q_u8(w + 256 + (kHighBits == 2 ? 64 * (kWord / 4) : 0) + 16 * i);
        return TwoWords{with_high_bits<kHighBits, kWord>(vandq_u8(line, vdupq_n_u8(15)), high),
                        with_high_bits<kHighBits, kWord + 1>(vshrq_n_u8(line, 4), high)};
      });
}

}  // namespace
}  // namespace riftco
