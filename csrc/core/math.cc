#include "core/math.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/math_formulas.h"

namespace riftco::math {
namespace {

// One float with the operations that the formulas want.
struct F1 {
  float v;
  static F1 splat(float x) { return {x}; }
};
F1 operator+(F1 a, F1 b) { return {a.v + b.v}; }
F1 operator-(F1 a, F1 b) { return {a.v - b.v}; }
F1 operator*(F1 a, F1 b) { return {a.v * b.v}; }
F1 operator/(F1 a, F1 b) { return {a.v / b.v}; }
F1 fma(F1 a, F1 b, F1 c) { return {__builtin_fmaf(a.v, b.v, c.v)}; }
F1 min_second(F1 a, F1 b) { return a.v < b.v ? a : b; }  // the second where one is NaN
F1 max_second(F1 a, F1 b) { return a.v > b.v ? a : b; }
F1 abs(F1 a) { return {__builtin_fabsf(a.v)}; }
F1 copy_sign(F1 a, F1 sign) { return {__builtin_copysignf(a.v, sign.v)}; }
F1 round_even(F1 a) { return {(a.v + 0x1.8p23f) - 0x1.8p23f}; }  // |a| < 2^22
bool less(F1 a, F1 b) { return a.v < b.v; }
F1 select(bool m, F1 a, F1 b) { return m ? a : b; }

float power_of_two(int32_t n) { return std::bit_cast<float>((n + 127) << 23); }
F1 scale_by_power_of_two(F1 a, F1 n) {
  if (n.v != n.v) return n;
  const int32_t i = int32_t(n.v), half = i >> 1;
  return {a.v * power_of_two(half) * power_of_two(i - half)};
}

constexpr double kLog2High = 0x1.62e42fefa0000p-1,
                 kLog2Low = 0x1.cf79abc9e3b3ap-40;  // the high part has 36 bits

double power_of_two_double(int64_t n) { return std::bit_cast<double>((n + 1023) << 52); }

// c[0] + s (c[1] + s (...)), highest power last.
template <size_t N>
double polynomial(const double (&c)[N], double s) {
  double sum = c[N - 1];
  for (size_t i = N - 1; i-- > 0;) sum = __builtin_fma(sum, s, c[i]);
  return sum;
}

}  // namespace

float exp(float x) noexcept { return formulas::exp(F1{x}).v; }
float erf(float x) noexcept { return formulas::erf(F1{x}).v; }
float tanh(float x) noexcept { return formulas::tanh(F1{x}).v; }
float log(float x) noexcept { return float(log(double(x))); }

double exp(double x) noexcept {
  static constexpr double kTaylor[] = {1.0,
                                       1.0,
                                       1.0 / 2,
                                       1.0 / 6,
                                       1.0 / 24,
                                       1.0 / 120,
                                       1.0 / 720,
                                       1.0 / 5040,
                                       1.0 / 40320,
                                       1.0 / 362880,
                                       1.0 / 3628800,
                                       1.0 / 39916800,
                                       1.0 / 479001600,
                                       1.0 / 6227020800};
  if (x != x) return x;
  if (x < -708) return 0;
  if (x > 709.782712893384) return std::numeric_limits<double>::infinity();
  const double n = (x * 0x1.71547652b82fep0 + 0x1.8p52) - 0x1.8p52;
  const double r = __builtin_fma(n, -kLog2Low, __builtin_fma(n, -kLog2High, x));
  const int64_t i = int64_t(n), half = i >> 1;
  return polynomial(kTaylor, r) * power_of_two_double(half) * power_of_two_double(i - half);
}

// x = 2^k m with sqrt(1/2) <= m < sqrt(2); log m = 2 atanh(f), f = (m - 1) / (m + 1).
double log(double x) noexcept {
  static constexpr double kAtanh[] = {1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11, 1.0 / 13,
                                      1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23};
  if (x != x || x < 0) return std::numeric_limits<double>::quiet_NaN();
  if (x == 0) return -std::numeric_limits<double>::infinity();
  if (x == std::numeric_limits<double>::infinity()) return x;
  int64_t k = 0;
  if (x < std::numeric_limits<double>::min()) x *= 0x1p54, k = -54;
  const int64_t bits = std::bit_cast<int64_t>(x), offset = bits - 0x3FE6A09E667F3BCD;  // sqrt(1/2)
  k += offset >> 52;
  const double m = std::bit_cast<double>(bits - (offset & ~int64_t(0xFFFFFFFFFFFFF)));
  const double g = m - 1, f = g / (2 + g), s = f * f;  // g is exact
  // log m = g - f (g - 2 s P(s)): the large term is exact
  const double tail = f * (g - 2 * s * polynomial(kAtanh, s));
  return __builtin_fma(double(k), kLog2High, g - (tail - double(k) * kLog2Low));
}

double pow(double base, double exponent) noexcept { return exp(exponent * log(base)); }

// x = n pi/2 + r with pi/2 in three parts of 53 bits: n times the first is exact within the fused operation.
void sin_cos(double x, double* sine, double* cosine) noexcept {
  static constexpr double kSine[] = {
      -1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
      -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
  static constexpr double kCosine[] = {
      1.0 / 24,        -1.0 / 720,         1.0 / 40320,          -1.0 / 3628800,
      1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000, -1.0 / 6402373705728000};
  if (!(x <= 1e7 && x >= -1e7)) {
    *sine = *cosine = std::numeric_limits<double>::quiet_NaN();
    return;
  }
  const double n = (x * 0x1.45f306dc9c883p-1 + 0x1.8p52) - 0x1.8p52;
  double r = __builtin_fma(n, -0x1.921fb54442d18p0, x);
  r = __builtin_fma(n, -0x1.1a62633145c07p-54, r);
  r = __builtin_fma(n, 0x1.f1976b7ed8fbcp-110, r);
  const double s = r * r;
  const double sin_r = __builtin_fma(r * s, polynomial(kSine, s), r);
  const double cos_r = __builtin_fma(s * s, polynomial(kCosine, s), 1 - 0.5 * s);
  const int64_t quadrant = int64_t(n) & 3;
  const double a = quadrant & 1 ? cos_r : sin_r, b = quadrant & 1 ? sin_r : cos_r;
  *sine = quadrant & 2 ? -a : a;
  *cosine = (quadrant + 1) & 2 ? -b : b;
}

}  // namespace riftco::math
