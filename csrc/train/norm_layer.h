// A norm over rows of floats, and its gradients. Statistics of the rows stay in the context's scratch from one to the other.
#pragma once
#include "train/context.h"

namespace riftco {

struct NormLayer {
  NormKind kind;
  float epsilon;
  NormWeights weights;
  uint32_t width;
};

// out[r] = norm(x[r])
inline void norm_forward(const TrainingContext& context, const NormLayer& norm, const float* x, uint32_t rows,
                         float* out) {
  context.run(context.training.normalise, NormaliseArgs{norm.kind, norm.epsilon, norm.weights, x, rows,
                                                        norm.width, out, context.statistics});
}

// After norm_forward of the same x: dx (+)= the gradient of x, and those of the weights where they are trained. dx may be dy
// where it is not added to.
inline void norm_backward(const TrainingContext& context, const NormLayer& norm, const float* x,
                          const float* dy, uint32_t rows, float* dx, bool accumulate) {
  if (float* weight = context.gradient_of(norm.weights.weight))
    context.run(context.training.norm_gradients,
                NormGradientArgs{x, dy, context.statistics, rows, norm.width, weight,
                                 norm.weights.bias ? context.gradient_of(norm.weights.bias) : nullptr});
  context.run(context.training.norm_backward,
              NormBackwardArgs{norm.kind, norm.weights.weight, x, dy, context.statistics, rows, norm.width,
                               dx, !accumulate});
}

}  // namespace riftco
