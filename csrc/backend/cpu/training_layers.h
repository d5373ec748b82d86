// Norms, activations, rotation and loss of training, forward and backward.
#pragma once
#include "backend/cpu/norm.h"
#include "backend/cpu/training_matrix.h"
#include "core/math.h"

namespace riftco {
namespace {

// --- norms ---

RIFTCO_INLINE F16 normal(const RowStatistics& row, const float* x, uint32_t n) {
  return (load_some(x, n) - F16::splat(row.mean)) * F16::splat(row.inverse);
}

void normalise(const NormaliseArgs& args, Share share) {
  const uint32_t width = args.width;
  const Range rows = part(args.rows, share);
  for (size_t r = rows.begin; r < rows.end; r++) {
    const float* x = args.x + r * width;
    const RowNorm row = measure_row(args.kind, args.epsilon, x, width);
    args.statistics[r] = {row.mean, row.inverse};
    for (uint32_t c = 0; c < width; c += 16) {
      const uint32_t n = smaller(16, width - c);
      F16 v = normal(args.statistics[r], x + c, n) * load_some(args.weights.weight + c, n);
      if (args.weights.bias) v = v + load_some(args.weights.bias + c, n);
      store_some(v, args.out + r * width + c, n);
    }
  }
}

void norm_backward(const NormBackwardArgs& args, Share share) {
  const uint32_t width = args.width;
  const Range rows = part(args.rows, share);
  for (size_t r = rows.begin; r < rows.end; r++) {
    const float *x = args.x + r * width, *dy = args.dy + r * width;
    const RowStatistics row = args.statistics[r];
    const auto scaled = [&](uint32_t c, uint32_t n) {
      return load_some(dy + c, n) * load_some(args.weight + c, n);
    };
    F16 plain = F16::splat(0), along = F16::splat(0);
    for (uint32_t c = 0; c < width; c += 16) {  // missing lanes: dy is 0
      const uint32_t n = smaller(16, width - c);
      const F16 g = scaled(c, n);
      plain = plain + g;
      along = fma(g, normal(row, x + c, n), along);
    }
    const float count = float(width);
    const F16 mean = F16::splat(args.kind == NormKind::layer ? sum(plain) / count : 0.0f),
              projection = F16::splat(sum(along) / count), inverse = F16::splat(row.inverse);
    for (uint32_t c = 0; c < width; c += 16) {
      const uint32_t n = smaller(16, width - c);
      float* to = args.dx + r * width + c;
      const F16 dx = (scaled(c, n) - mean - normal(row, x + c, n) * projection) * inverse;
      store_some(args.overwrite ? dx : load_some(to, n) + dx, to, n);
    }
  }
}

void norm_gradients(const NormGradientArgs& args, Share share) {
  for_each_vector(args.width, share, [&](uint32_t c, uint32_t n) {
    F16 weight = load_some(args.weight + c, n);
    F16 bias = args.bias ? load_some(args.bias + c, n) : F16::splat(0);
    for (size_t r = 0; r < args.rows; r++) {
      const size_t at = r * args.width + c;
      const F16 dy = load_some(args.dy + at, n);
      weight = fma(dy, normal(args.statistics[r], args.x + at, n), weight);
      bias = bias + dy;
    }
    store_some(weight, args.weight + c, n);
    if (args.bias) store_some(bias, args.bias + c, n);
  });
}

// --- activations ---

// d/dx of x * Phi(x) = Phi(x) + x * phi(x), the normal distribution and its density.
RIFTCO_INLINE F16 gelu_erf_slope(F16 x) {
  const F16 half = F16::splat(0.5f);
  const F16 phi = formulas::exp(F16::splat(-0.5f) * x * x) * F16::splat(0.398942280f);
  return fma(x, phi, fma(half, formulas::erf(x * F16::splat(0.707106781f)), half));
}

// With t = tanh(u(x)): 0.5 (1 + t) + 0.5 x (1 - t^2) u'(x).
RIFTCO_INLINE F16 gelu_tanh_slope(F16 x) {
  const F16 half = F16::splat(0.5f), one = F16::splat(1), root = F16::splat(0.797884561f);
  const F16 t = formulas::tanh(root * fma(F16::splat(0.044715f) * x * x, x, x));
  const F16 inner = root * fma(F16::splat(3 * 0.044715f) * x, x, one);
  return fma(half, t, half) + half * x * (one - t * t) * inner;
}

void activation_backward(const ActivationBackwardArgs& args, Share share) {
  const Range mine = part(ceil_div(args.count, 16), share);
  const auto walk = [&](auto element) {
    for (size_t i = mine.begin * 16; i < mine.end * 16 && i < args.count; i += 16)
      element(i, args.count - i < 16 ? uint32_t(args.count - i) : 16);
  };
  const auto gelu = [&](auto value, auto slope) {
    walk([&](size_t i, uint32_t n) {
      const F16 up = load_some(args.up + i, n);
      store_some(value(up), args.y + i, n);
      store_some(load_some(args.dy + i, n) * slope(up), args.dy + i, n);
    });
  };
  switch (args.kind) {
    case Activation::gelu_erf:
      return gelu([](F16 x) { return formulas::gelu_erf(x); }, [](F16 x) { return gelu_erf_slope(x); });
    case Activation::gelu_tanh:
      return gelu([](F16 x) { return formulas::gelu_tanh(x); }, [](F16 x) { return gelu_tanh_slope(x); });
    case Activation::silu_gated:  // silu(x) = x s(x); its slope is s (1 + x (1 - s))
      return walk([&](size_t i, uint32_t n) {
        const F16 gate = load_some(args.gate + i, n), up = load_some(args.up + i, n),
                  dy = load_some(args.dy + i, n), one = F16::splat(1);
        const F16 silu = formulas::silu(gate), s = one / (one + formulas::exp(F16::splat(0) - gate));
        store_some(silu * up, args.y + i, n);
        store_some(dy * silu, args.dy + i, n);
        store_some(dy * up * s * fma(gate, one - s, one), args.dgate + i, n);
      });
  }
}

// --- rotation ---

void rotate(const RotateArgs& args, Share share) {
  const Range rows = part(args.rows, share);
  const uint32_t pairs = args.pairs;
  for (size_t r = rows.begin; r < rows.end; r++) {
    const float *cosines = args.cos_sin + r % args.period * 2 * pairs, *sines = cosines + pairs;
    for (uint32_t h = 0; h < args.heads; h++) {
      float* x = args.x + (r * args.heads + h) * args.head_width;
      for (uint32_t i = 0; i < pairs; i++) {
        const float a = x[i], b = x[i + pairs], s = args.inverse ? -sines[i] : sines[i];
        x[i] = a * cosines[i] - b * s;
        x[i + pairs] = b * cosines[i] + a * s;
      }
    }
  }
}

// --- loss ---

float row_largest(const float* x, uint32_t count) {
  F16 most = F16::splat(x[0]);
  for (uint32_t i = 0; i < count; i += 16) {
    const uint32_t n = smaller(16, count - i);
    most = select(first_lanes(n), max_nan(most, load_some(x + i, n)), most);
  }
  return largest(most);
}

void cross_entropy_row(const CrossEntropyArgs& args, size_t r) {
  float* x = args.logits + r * args.vocabulary;
  const uint32_t target = args.targets[r];
  args.loss[r] = 0;
  if (target >= args.vocabulary) {
    if (args.scale > 0) std::memset(x, 0, args.vocabulary * sizeof(float));
    return;
  }
  const float most = row_largest(x, args.vocabulary), chosen = x[target];
  const F16 shift = F16::splat(most);
  F16 total = F16::splat(0);
  for (uint32_t i = 0; i < args.vocabulary; i += 16) {
    const uint32_t n = smaller(16, args.vocabulary - i);
    const F16 e = formulas::exp(load_some(x + i, n) - shift);
    if (args.scale > 0) store_some(e, x + i, n);
    total = select(first_lanes(n), total + e, total);
  }
  const float all = sum(total);
  args.loss[r] = math::log(all) + (most - chosen);
  if (!(args.scale > 0)) return;
  const F16 factor = F16::splat(args.scale / all);
  for (uint32_t i = 0; i < args.vocabulary; i += 16) {
    const uint32_t n = smaller(16, args.vocabulary - i);
    store_some(load_some(x + i, n) * factor, x + i, n);
  }
  x[target] -= args.scale;
}

void cross_entropy(const CrossEntropyArgs& args, Share share) {
  const Range rows = part(args.rows, share);
  for (size_t r = rows.begin; r < rows.end; r++) cross_entropy_row(args, r);
}

}  // namespace
}  // namespace riftco
