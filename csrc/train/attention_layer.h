// Attention from normalised rows to the context: q, k and v, head norms, rotation, softmax; and the way back.
#pragma once
#include "train/linear_layer.h"

namespace riftco {

// Kept from forward to backward, rows of [heads * head_width] or [kv_heads * head_width].
struct AttentionActivations {
  float *raw_q, *raw_k;  // before head norms; null without them
  float *q, *k, *v;      // rotated
  float* context;
  SoftmaxStatistics* statistics;  // [sequences, heads, length]
  float* probabilities;           // [sequences, heads, length, length] or null
};

struct AttentionGradients {  // scratch, shaped as q, k, v
  float *dq, *dk, *dv;
};

// cos_sin: [length, 2 * rotated pairs].
void attention_forward(const TrainingContext& context, const LayerWeights& layer, const float* cos_sin,
                       const float* normal, const AttentionActivations& kept);

// Gradients of q, k and v before rotation and head norms, from that of the context; and those of the head norms.
void attention_backward(const TrainingContext& context, const LayerWeights& layer, const float* cos_sin,
                        const AttentionActivations& kept, const float* dcontext,
                        const AttentionGradients& out);

}  // namespace riftco
