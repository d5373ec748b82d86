// The project's own elementary functions: libm's differ between machines, these give the same bits everywhere.
// The kernels' vector forms (core/math_formulas.h) give the same bits as the float functions here.
// Bounds are the largest errors seen in tests/cc/test_math.cc, in units of the last place (ulp).
#pragma once

namespace riftco::math {

float exp(float x) noexcept;   // 0.9 ulp; infinity above 88.72, 0 below -103.97; subnormals are rounded once
float log(float x) noexcept;   // 0.5 ulp; log(0) = -infinity, of negatives NaN
float erf(float x) noexcept;   // 1.0 ulp
float tanh(float x) noexcept;  // 1.3 ulp

double exp(double x) noexcept;                      // 0.9 ulp; 0 below -708, infinity above 709.78
double log(double x) noexcept;                      // 1 ulp; subnormals too
double pow(double base, double exponent) noexcept;  // base > 0; 32 ulp while |exponent * log(base)| < 32
void sin_cos(double x, double* sine,
             double* cosine) noexcept;  // absolute error 2^-52 for |x| <= 1e7; else NaN

}  // namespace riftco::math
