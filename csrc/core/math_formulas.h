// exp, erf, tanh and the activations, written once for a float and for a vector of floats. V needs + - * / and the
// functions used here. V lives in an unnamed namespace where it is compiled for an instruction set, so that no instance
// is shared between them.
//
// Polynomials: Taylor for exp; tanh and erf are minimax fits of relative error, below 0.1 ulp before rounding.
#pragma once

namespace riftco::formulas {

// e^x = 2^n e^r with |r| <= log(2) / 2; n is split in two so that a subnormal result is rounded once.
template <class V>
[[gnu::always_inline]] inline V exp(V x) {
  x = max_second(V::splat(-104.0f), min_second(V::splat(89.0f), x));  // beyond: 0 and infinity all the same
  const V n = round_even(x * V::splat(1.44269504f));
  V r = fma(n, V::splat(-0.693359375f), x);  // 9 bits of log(2): exact
  r = fma(n, V::splat(2.12194440e-4f), r);
  V p = V::splat(1.0f / 5040);
  p = fma(p, r, V::splat(1.0f / 720));
  p = fma(p, r, V::splat(1.0f / 120));
  p = fma(p, r, V::splat(1.0f / 24));
  p = fma(p, r, V::splat(1.0f / 6));
  p = fma(p, r, V::splat(0.5f));
  p = fma(p, r, V::splat(1.0f));
  p = fma(p, r, V::splat(1.0f));
  return scale_by_power_of_two(p, n);
}

template <class V>
[[gnu::always_inline]] inline V erf(V x) {
  const V t = min_second(V::splat(4.0f), abs(x)), s = x * x;
  V small = V::splat(7.85359644e-5f);  // |x| < 1: x + x P(x^2)
  small = fma(small, s, V::splat(-8.01010665e-4f));
  small = fma(small, s, V::splat(5.18831668e-3f));
  small = fma(small, s, V::splat(-2.68538052e-2f));
  small = fma(small, s, V::splat(1.12835849e-1f));
  small = fma(small, s, V::splat(-3.76126258e-1f));
  small = fma(small, s, V::splat(1.28379166e-1f));
  small = fma(small, x, x);
  V q = V::splat(-2.10643481e-4f);  // 1 <= |x|: 1 - exp(-t Q(t))
  q = fma(q, t, V::splat(3.18694824e-3f));
  q = fma(q, t, V::splat(-2.27984691e-2f));
  q = fma(q, t, V::splat(1.05116149e-1f));
  q = fma(q, t, V::splat(6.35831471e-1f));
  q = fma(q, t, V::splat(1.12848004f));
  const V large = copy_sign(V::splat(1.0f) - exp(V::splat(0.0f) - q * t), x);
  return select(less(t, V::splat(1.0f)), small, large);
}

template <class V>
[[gnu::always_inline]] inline V tanh(V x) {
  const V t = abs(x), s = x * x;
  V small = V::splat(-5.71704909e-3f);  // |x| < 0.625: x + x^3 P(x^2)
  small = fma(small, s, V::splat(2.06505913e-2f));
  small = fma(small, s, V::splat(-5.37434995e-2f));
  small = fma(small, s, V::splat(1.33314913e-1f));
  small = fma(small, s, V::splat(-3.33332839e-1f));
  small = fma(small * s, x, x);
  const V large = V::splat(1.0f) - V::splat(2.0f) / (exp(t + t) + V::splat(1.0f));
  return copy_sign(select(less(t, V::splat(0.625f)), small, large), x);
}

template <class V>
[[gnu::always_inline]] inline V gelu_erf(V x) {
  return V::splat(0.5f) * x * (V::splat(1.0f) + erf(x * V::splat(0.707106781f)));
}

template <class V>
[[gnu::always_inline]] inline V gelu_tanh(V x) {
  const V inner = V::splat(0.797884561f) * fma(V::splat(0.044715f) * x * x, x, x);
  return V::splat(0.5f) * x * (V::splat(1.0f) + tanh(inner));
}

template <class V>
[[gnu::always_inline]] inline V silu(V x) {
  return x / (V::splat(1.0f) + exp(V::splat(0.0f) - x));
}

}  // namespace riftco::formulas
