// The kernels that only training needs, with shapes and contract, on one page. As core/kernels.h has it: the same bits on
// every instruction set, an output element is reduced in one fixed order, and no kernel allocates, throws or synchronises.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/kernels.h"

namespace riftco {

// --- rows of floats: element (r, c) of x is x[r * stride + c].

// A packed f32 matrix the other way round, in the same layout: outputs [first, first + count) of `from`, which are whole
// panels but at its end, become the inputs of `to` [from.inputs, count]. Panels of `to` are shared.
struct TransposeArgs {
  const PackedMatrix* from;
  uint32_t first, count;
  const PackedMatrix* to;
};

// Operand row c = column c of x; a float operand of `columns` rows of width `rows`.
struct PackTransposedArgs {
  const float* x;
  size_t stride;
  Operand out;
};

// gradient[o][i] = its value, then fma(dy[r][o], x[r][i], .) for r = 0, 1, ... Outputs are shared.
struct OuterArgs {
  Operand x;  // by PackTransposedArgs: rows = inputs, width = rows of dy
  const float* dy;
  size_t stride;
  uint32_t outputs;
  float* gradient;     // packed f32 [outputs, inputs]
  std::byte* scratch;  // outer_scratch_bytes(), this worker's own
};

struct ColumnSumArgs {  // sums[c] = its value + x[0][c] + x[1][c] ... Columns are shared.
  const float* x;
  size_t stride;
  uint32_t rows, columns;
  float* sums;
};

// Row index[r] of the gradient of a table += row r of dx, in order. Columns are shared.
struct ScatterArgs {
  const float* dx;        // [rows, width]
  const uint32_t* index;  // [rows]
  uint32_t rows, width;
  float* gradient;  // packed f32 [.., width]
};

// --- layers

struct RowStatistics {  // of a normalised row; rms: mean 0
  float mean, inverse;
};

// out[r] = norm(x[r]), the bits of the inference kernel. Rows are shared.
struct NormaliseArgs {
  NormKind kind;
  float epsilon;
  NormWeights weights;
  const float* x;  // [rows, width]
  uint32_t rows, width;
  float* out;                 // [rows, width]
  RowStatistics* statistics;  // [rows], for the backward kernels
};

// With n = (x - mean) * inverse, g = dy * weight: dx += inverse * (g - mean(g) - n * mean(g * n)); rms: without mean(g).
// Rows are shared.
struct NormBackwardArgs {
  NormKind kind;
  const float* weight;  // [width]
  const float *x, *dy;  // [rows, width]
  const RowStatistics* statistics;
  uint32_t rows, width;
  float* dx;       // [rows, width], added to; or null
  bool overwrite;  // dx = instead of dx +=; dx may be dy then
};

// weight += sum over rows of dy * n, bias += sum of dy. Columns are shared.
struct NormGradientArgs {
  const float *x, *dy;  // [rows, width]
  const RowStatistics* statistics;
  uint32_t rows, width;
  float *weight, *bias;  // [width], added to; bias or null
};

// y = gelu(up) or silu(gate) * up, and the gradients of up and gate from that of y. Elements are shared.
struct ActivationBackwardArgs {
  Activation kind;
  size_t count;
  const float* gate;  // or null
  const float* up;
  float* y;      // the activation again
  float* dy;     // in: gradient of y; out: of up
  float* dgate;  // or null
};

// Rotates heads in place (StoreArgs of core/kernels.h) by the angles of row r % period, backwards where `inverse`. Rows are
// shared.
struct RotateArgs {
  float* x;  // [rows, heads * head_width]
  uint32_t rows, period, heads, head_width, pairs;
  const float* cos_sin;  // [period, 2 * pairs]
  bool inverse;
};

// Softmax cross-entropy of rows of logits: loss[r] = log(sum exp(logits[r])) - logits[r][target], 0 without a target.
// scale > 0: logits[r] becomes its gradient, (softmax - one at the target) * scale, zeros without a target. Rows are shared.
struct CrossEntropyArgs {
  float* logits;            // [rows, vocabulary]
  const uint32_t* targets;  // [rows]; UINT32_MAX: none
  uint32_t rows, vocabulary;
  float scale;
  float* loss;  // [rows]
};

// --- attention: causal, over sequences of one length

struct SoftmaxStatistics {
  float maximum, sum;  // of the scores a row sees, and of exp(score - maximum)
};

// Scores are q k^T * scale; a row sees the newest `window` keys up to its own. Rows are [sequences * length].
struct TrainingAttentionArgs {
  uint32_t length, heads, kv_heads, head_width, window;
  float scale;
  const float* q;                 // [rows, heads * head_width]
  const float *k, *v;             // [rows, kv_heads * head_width]
  float* context;                 // [rows, heads * head_width]
  SoftmaxStatistics* statistics;  // [sequences, heads, length]
  float* probabilities;   // [sequences, heads, length, length], or null: computed again on the way back
  const float* dcontext;  // from here on backward only
  float* dq;
  float *dk, *dv;
  std::byte* scratch;  // training_attention_scratch_bytes(length, head_width), this worker's own
};

// --- optimizer

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
  // --- matrices
  void (*transpose_packed)(const TransposeArgs&, Share);
  void (*pack_transposed)(const PackTransposedArgs&, Share);
  size_t (*outer_scratch_bytes)();
  void (*accumulate_outer)(const OuterArgs&, Share);
  void (*column_sums)(const ColumnSumArgs&, Share);
  void (*scatter_rows)(const ScatterArgs&, Share);

  // --- layers
  void (*normalise)(const NormaliseArgs&, Share);
  void (*norm_backward)(const NormBackwardArgs&, Share);
  void (*norm_gradients)(const NormGradientArgs&, Share);
  void (*activation_backward)(const ActivationBackwardArgs&, Share);
  void (*rotate)(const RotateArgs&, Share);
  void (*cross_entropy)(const CrossEntropyArgs&, Share);

  // --- attention
  size_t (*attention_scratch_bytes)(uint32_t length, uint32_t head_width);
  // Unit sequence * heads + head: the context, the statistics and, where wanted, the probabilities of one head.
  void (*attention_forward)(const TrainingAttentionArgs&, uint32_t unit);
  // Unit sequence * kv_heads + kv_head: dk, dv of one key/value head and dq of its query heads.
  void (*attention_backward)(const TrainingAttentionArgs&, uint32_t unit);

  // --- optimizer
  // Elements [begin, end) of 64-byte aligned arrays, multiples of 16: padding that is zero stays zero.
  void (*adam_update)(const AdamArgs&, size_t begin, size_t end);
  // sums[o] = sum over i of m[o][i]^2, in double, in the order of i, of a packed f32 matrix; a vector of n is one of n
  // outputs and one input. Panels of outputs are shared.
  void (*sum_squares)(const float* matrix, uint32_t outputs, uint32_t inputs, double* sums, Share);
};

}  // namespace riftco
