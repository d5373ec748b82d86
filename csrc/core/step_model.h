// A model as a step sees it: geometry and packed weights. Built by model/, read by the step executor and the kernels.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace riftco {

enum class NormKind : uint8_t { layer, rms };
enum class Activation : uint8_t { gelu_erf, gelu_tanh, silu_gated };

// How products with matrices of bf16 are computed: with the inputs as they are, or rounded to bf16 (core/kernels.h).
enum class Compute : uint8_t { exact, bf16 };

struct LowRankAdapter;

// y[o] = sum over i of W[o][i] x[i] + bias[o]. `data` is in the device's packed layout (KernelTable::pack_rows).
struct PackedMatrix {
  DType type = DType::f32;
  uint32_t outputs = 0;
  uint32_t inputs = 0;
  std::byte* data = nullptr;
  const float* bias = nullptr;              // [outputs] or null
  const LowRankAdapter* adapter = nullptr;  // adds to y, or null
  Compute compute = Compute::exact;         // bf16: only where the type is bf16

  explicit operator bool() const noexcept { return data != nullptr; }
};

// y += b (scale * (a x)): a low-rank update of a matrix (LoRA, Hu and others 2021).
struct LowRankAdapter {
  PackedMatrix a;  // f32 [rank, inputs]
  PackedMatrix b;  // f32 [outputs, rank]
  float scale = 1;
};

struct NormWeights {
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width] or null
};

struct LayerWeights {
  NormWeights attention_norm, mlp_norm;
  PackedMatrix q, k, v;           // outputs: heads * head_width, kv_heads * head_width twice; inputs: width
  PackedMatrix o;                 // [width, heads * head_width]
  PackedMatrix gate;              // [mlp_width, width]; only with a gated activation
  PackedMatrix up;                // [mlp_width, width]
  PackedMatrix down;              // [width, mlp_width]
  const float* q_norm = nullptr;  // [head_width] or null
  const float* k_norm = nullptr;  // [head_width] or null
  uint32_t window = UINT32_MAX;   // keys that a row sees, its own included
};

struct StepModel {
  uint32_t width = 0, heads = 0, kv_heads = 0, head_width = 0, mlp_width = 0, vocabulary = 0;
  NormKind norm = NormKind::layer;
  float norm_epsilon = 0;
  Activation activation = Activation::gelu_erf;
  std::span<const double> inverse_frequencies;  // rotary: one per rotated pair; empty with learned positions
  double rotary_scale = 1;                      // of cosines and sines
  PackedMatrix token_embedding;     // [vocabulary, width]; with a tied head the same data as `head`
  PackedMatrix position_embedding;  // [positions, width]; learned positions only
  std::span<const LayerWeights> layers;
  NormWeights final_norm;
  PackedMatrix head;                 // [vocabulary, width]
  uint32_t adapter_rank = 0;         // the largest of its matrices' adapters
  Compute compute = Compute::exact;  // of its matrices of bf16; without any it is exact
};

}  // namespace riftco
