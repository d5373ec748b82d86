// Sixteen virtual lanes in plain C++: the baseline on any machine. Included by vec.h only.
#pragma once
#include "core/dtype.h"

namespace riftco {
namespace {

inline constexpr int kDotRows = 2, kAccumulators = 2, kFloatRows = 2, kFloatVectors = 1;

struct F16 {
  float v[16];

  template <class Fn>
  static RIFTCO_INLINE F16 each(Fn fn) {
    F16 r;
    for (int i = 0; i < 16; i++) r.v[i] = fn(i);
    return r;
  }
  static RIFTCO_INLINE F16 splat(float x) {
    return each([&](int) { return x; });
  }
  static RIFTCO_INLINE F16 load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  static RIFTCO_INLINE F16 load_first(const float* p, uint32_t n) {
    return each([&](int i) { return uint32_t(i) < n ? p[i] : 0.0f; });
  }
  RIFTCO_INLINE void store(float* p) const { std::memcpy(p, v, sizeof v); }
  RIFTCO_INLINE void store_first(float* p, uint32_t n) const { std::memcpy(p, v, 4 * n); }
};
struct M16 {
  bool v[16];
};
struct I16 {
  int32_t v[16];
};

RIFTCO_INLINE F16 operator+(F16 a, F16 b) {
  return F16::each([&](int i) { return a.v[i] + b.v[i]; });
}
RIFTCO_INLINE F16 operator-(F16 a, F16 b) {
  return F16::each([&](int i) { return a.v[i] - b.v[i]; });
}
RIFTCO_INLINE F16 operator*(F16 a, F16 b) {
  return F16::each([&](int i) { return a.v[i] * b.v[i]; });
}
RIFTCO_INLINE F16 operator/(F16 a, F16 b) {
  return F16::each([&](int i) { return a.v[i] / b.v[i]; });
}
RIFTCO_INLINE F16 fma(F16 a, F16 b, F16 c) {
  return F16::each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
RIFTCO_INLINE F16 min_second(F16 a, F16 b) {
  return F16::each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
RIFTCO_INLINE F16 max_second(F16 a, F16 b) {
  return F16::each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
RIFTCO_INLINE F16 max_nan(F16 a, F16 b) {
  return F16::each([&](int i) { return max_nan(a.v[i], b.v[i]); });
}
RIFTCO_INLINE F16 abs(F16 a) {
  return F16::each([&](int i) { return __builtin_fabsf(a.v[i]); });
}
RIFTCO_INLINE F16 sqrt(F16 a) {
  return F16::each([&](int i) { return __builtin_sqrtf(a.v[i]); });
}
RIFTCO_INLINE F16 copy_sign(F16 a, F16 sign) {
  return F16::each([&](int i) { return __builtin_copysignf(a.v[i], sign.v[i]); });
}
RIFTCO_INLINE F16 round_even(F16 a) {  // |a| < 2^22
  return F16::each([&](int i) { return (a.v[i] + 0x1.8p23f) - 0x1.8p23f; });
}
RIFTCO_INLINE F16 scale_by_power_of_two(F16 a, F16 n) {
  return F16::each([&](int i) {
    const int32_t e = n.v[i] == n.v[i] ? int32_t(n.v[i]) : 0, half = e >> 1;
    const float first = __builtin_bit_cast(float, (half + 127) << 23);
    return a.v[i] * first * __builtin_bit_cast(float, (e - half + 127) << 23);
  });
}
RIFTCO_INLINE M16 less(F16 a, F16 b) {
  M16 m;
  for (int i = 0; i < 16; i++) m.v[i] = a.v[i] < b.v[i];
  return m;
}
RIFTCO_INLINE M16 first_lanes(uint32_t n) {
  M16 m;
  for (uint32_t i = 0; i < 16; i++) m.v[i] = i < n;
  return m;
}
RIFTCO_INLINE F16 select(M16 m, F16 yes, F16 no) {
  return F16::each([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}
RIFTCO_INLINE float sum(F16 a) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; i++) a.v[i] += a.v[i + half];
  return a.v[0];
}
RIFTCO_INLINE float largest(F16 a) {
  for (int i = 1; i < 16; i++) a.v[0] = max_nan(a.v[0], a.v[i]);
  return a.v[0];
}
RIFTCO_INLINE float largest_abs(F16 a, F16 b) {
  int32_t most = 0;
  for (int i = 0; i < 16; i++) {
    const int32_t x = __builtin_bit_cast(int32_t, a.v[i]) & 0x7FFFFFFF;
    const int32_t y = __builtin_bit_cast(int32_t, b.v[i]) & 0x7FFFFFFF;
    most = x > most ? x : most;
    most = y > most ? y : most;
  }
  return __builtin_bit_cast(float, most);
}

RIFTCO_INLINE F16 load16(const float* p) { return F16::load(p); }
RIFTCO_INLINE F16 load16(const Half* p) {
  return F16::each([&](int i) { return half_to_float(p[i].bits); });
}
RIFTCO_INLINE F16 load16(const BFloat* p) {
  return F16::each([&](int i) { return __builtin_bit_cast(float, uint32_t(p[i].bits) << 16); });
}
inline constexpr bool kPairProducts = true;  // so that tests see that way on every machine
RIFTCO_INLINE F16 load_first(const BFloat* p) {
  return F16::each([&](int i) { return __builtin_bit_cast(float, uint32_t(p[2 * i + 1].bits) << 16); });
}
RIFTCO_INLINE F16 load_second(const BFloat* p) {
  return F16::each([&](int i) { return __builtin_bit_cast(float, uint32_t(p[2 * i].bits) << 16); });
}
RIFTCO_INLINE F16 add_products(F16 a, Pair x, const BFloat* w) {
  const F16 first = F16::splat(__builtin_bit_cast(float, x.bits & 0xFFFF0000u)),
            second = F16::splat(__builtin_bit_cast(float, x.bits << 16));
  return fma(second, load_second(w), fma(first, load_first(w), a));
}
RIFTCO_INLINE void store16(F16 a, float* p) { a.store(p); }
RIFTCO_INLINE void store16(F16 a, Half* p) {
  for (int i = 0; i < 16; i++) p[i].bits = float_to_half(a.v[i]);
}
RIFTCO_INLINE void store16(F16 a, BFloat* p) {
  for (int i = 0; i < 16; i++) p[i].bits = float_to_bf16(a.v[i]);
}

RIFTCO_INLINE F16 to_float(I16 a) {
  return F16::each([&](int i) { return float(a.v[i]); });
}
RIFTCO_INLINE I16 minus(I16 a, int32_t x) {
  for (int i = 0; i < 16; i++) a.v[i] -= x;
  return a;
}
RIFTCO_INLINE F16 load_bytes_unsigned(const uint8_t* p) {
  return F16::each([&](int i) { return float(p[i]); });
}
RIFTCO_INLINE F16 load_bytes_signed(const uint8_t* p) {
  return F16::each([&](int i) { return float(int8_t(p[i])); });
}
RIFTCO_INLINE BlockSums store_int8(F16 a, F16 b, int8_t* q) {
  BlockSums total = {0, 0};
  for (int i = 0; i < 32; i++) {
    const float x = i < 16 ? a.v[i] : b.v[i - 16];
    const int32_t rounded = int32_t((x + 0x1.8p23f) - 0x1.8p23f);
    const int32_t clamped = rounded > 127 ? 127 : rounded < -127 ? -127 : rounded;
    q[i] = int8_t(clamped);
    (i < 16 ? total.low : total.high) += clamped;
  }
  return total;
}

template <int R>
RIFTCO_INLINE void dot_q4(const uint8_t* w, const int8_t* x, I16 (&total)[R]) {
  for (int r = 0; r < R; r++)
    for (int o = 0; o < 16; o++) {
      int32_t a = 0;
      for (int i = 0; i < 16; i++) {
        const uint8_t byte = w[64 * (i / 4) + 4 * o + i % 4];
        const int8_t* xi = x + 32 * r + 8 * (i / 4) + i % 4;
        a += (byte & 15) * xi[0] + (byte >> 4) * xi[4];
      }
      total[r].v[o] = a;
    }
}

template <int R, int kHighBits, int kFirst, int kWords>
RIFTCO_INLINE void dot_wide(const uint8_t* w, const int8_t* x, I16 (&total)[R]) {
  for (int r = 0; r < R; r++)
    for (int o = 0; o < 16; o++) {
      int32_t a = 0;
      for (int i = 4 * kFirst; i < 4 * (kFirst + kWords); i++) {
        const int word = i / 4, at = 4 * o + i % 4, shift = high_shift<kHighBits>(word);
        const int nibble = w[64 * (word / 2) + at] >> 4 * (word % 2) & 15;
        const int high = w[256 + (kHighBits == 2 ? 64 * (word / 4) : 0) + at];
        a += (nibble | ((shift < 0 ? high >> -shift : high << shift) & kHighMask[kHighBits])) * x[32 * r + i];
      }
      total[r].v[o] = a;
    }
}

template <int R>
RIFTCO_INLINE void dot_q8(const int8_t* w, const int8_t* x, const RowScale*, I16 (&total)[R]) {
  for (int r = 0; r < R; r++)
    for (int o = 0; o < 16; o++) {
      int32_t a = 0;
      for (int i = 0; i < 32; i++) a += w[64 * (i / 4) + 4 * o + i % 4] * x[32 * r + i];
      total[r].v[o] = a;
    }
}

}  // namespace
}  // namespace riftco
