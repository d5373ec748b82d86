// The kernels that only training needs, with shapes and contract, on one page. As core/kernels.h has it: the same bits on
// every instruction set, an output element is reduced in one fixed order, and no kernel allocates, throws or synchronises.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/kernels.h"

namespace riftco {

// One update of AdamW (Loshchilov and Hutter 2019) on elements that lie side by side, each operation rounded:
//   g = gradient * gradient_scale
//   m = fma(beta1, m, (1 - beta1) * g)              0 where that is subnormal, so that a parameter without gradients
//   v = fma(beta2, v, ((1 - beta2) * g) * g)        does not go on with slow numbers for ever
//   p = fma(-step_size, m / fma(sqrt(v), inverse_root_correction2, epsilon), fma(-decay, p, p))
struct AdamArgs {
  float* parameter;          // p
  const float* gradient;     // as the backward pass gave it
  float *moment1, *moment2;  // m, v
  float gradient_scale;      // of clipping; 1: none
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float step_size;                 // learning rate / (1 - beta1^t)
  float inverse_root_correction2;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
  float decay;  // learning rate * weight decay; 0: none
};

struct TrainingKernels {
  // --- optimizer
  // Elements [begin, end) of 64-byte aligned arrays, multiples of 16: padding that is zero stays zero.
  void (*adam_update)(const AdamArgs&, size_t begin, size_t end);
  // sums[o] = sum over i of m[o][i]^2, in double, in the order of i, of a packed f32 matrix; a vector of n is one of n
  // outputs and one input. Panels of outputs are shared.
  void (*sum_squares)(const float* matrix, uint32_t outputs, uint32_t inputs, double* sums, Share);
};

}  // namespace riftco
