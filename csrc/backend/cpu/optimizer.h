// The optimizer's two passes over memory.
#pragma once
#include "backend/cpu/layout.h"
#include "core/training_kernels.h"

namespace riftco {
namespace {

RIFTCO_INLINE F16 without_subnormals(F16 x) {
  return select(less(abs(x), F16::splat(0x1p-126f)), F16::splat(0), x);
}

void adam_update(const AdamArgs& args, size_t begin, size_t end) {
  const F16 scale = F16::splat(args.gradient_scale), epsilon = F16::splat(args.epsilon);
  const F16 beta1 = F16::splat(args.beta1), one_minus_beta1 = F16::splat(args.one_minus_beta1);
  const F16 beta2 = F16::splat(args.beta2), one_minus_beta2 = F16::splat(args.one_minus_beta2);
  const F16 correction = F16::splat(args.inverse_root_correction2);
  const F16 step = F16::splat(-args.step_size), decay = F16::splat(-args.decay);
  for (size_t i = begin; i < end; i += 16) {
    const F16 g = F16::load(args.gradient + i) * scale;
    F16 m = F16::load(args.moment1 + i), v = F16::load(args.moment2 + i), p = F16::load(args.parameter + i);
    m = without_subnormals(fma(beta1, m, one_minus_beta1 * g));
    v = without_subnormals(fma(beta2, v, one_minus_beta2 * g * g));
    p = fma(step, m / fma(sqrt(v), correction, epsilon), fma(decay, p, p));
    m.store(args.moment1 + i), v.store(args.moment2 + i), p.store(args.parameter + i);
  }
}

// Lanes run across outputs, so that a sum does not depend on the width of the panels.
void sum_squares(const float* matrix, uint32_t outputs, uint32_t inputs, double* sums, Share share) {
  const Range panels = part(ceil_div(outputs, kFloatPanel), share);
  for (size_t panel = panels.begin; panel < panels.end; panel++) {
    const float* x = matrix + panel * inputs * kFloatPanel;
    double totals[kFloatPanel] = {};
    const uint32_t lanes = smaller(kFloatPanel, outputs - uint32_t(panel) * kFloatPanel);
    if (lanes == kFloatPanel) {
      for (uint32_t i = 0; i < inputs; i++, x += kFloatPanel)
        for (uint32_t lane = 0; lane < kFloatPanel; lane++) totals[lane] += double(x[lane]) * double(x[lane]);
    } else {
      for (uint32_t i = 0; i < inputs; i++, x += kFloatPanel)
        for (uint32_t lane = 0; lane < lanes; lane++) totals[lane] += double(x[lane]) * double(x[lane]);
    }
    std::memcpy(sums + panel * kFloatPanel, totals, lanes * sizeof(double));
  }
}

}  // namespace
}  // namespace riftco
