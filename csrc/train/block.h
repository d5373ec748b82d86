// One transformer block, x + o(attention(norm(x))) and then + mlp(norm(.)), forward and backward side by side.
#pragma once
#include "train/attention_layer.h"

namespace riftco {

struct BlockActivations {
  float* x;  // [rows, width]: what enters
  AttentionActivations attention;
  float* middle;     // [rows, width]: after attention
  float *gate, *up;  // [rows, mlp_width]; gate null without one
};

struct BlockScratch {
  float* normal;     // [rows, width]
  float* d_normal;   // [rows, width]
  float* d_context;  // [rows, heads * head_width]
  AttentionGradients d_attention;
  float *y, *d_up, *d_gate;  // [rows, mlp_width]; d_gate null without a gate
};

// Keeps what `kept` has room for; out: [rows, width], may be another block's x.
void block_forward(const TrainingContext& context, const LayerWeights& layer, const float* cos_sin,
                   const BlockActivations& kept, const BlockScratch& scratch, float* out);

// dx: [rows, width], in: the gradient of out; out: of x.
void block_backward(const TrainingContext& context, const LayerWeights& layer, const float* cos_sin,
                    const BlockActivations& kept, const BlockScratch& scratch, float* dx);

}  // namespace riftco
