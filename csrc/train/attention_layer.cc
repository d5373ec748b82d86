#include "train/attention_layer.h"

#include <cmath>

#include "train/norm_layer.h"

namespace riftco {
namespace {

void rotate(const TrainingContext& c, float* x, uint32_t heads, const float* cos_sin, bool inverse) {
  const uint32_t pairs = uint32_t(c.model().inverse_frequencies.size());
  if (pairs)
    c.run(c.training.rotate,
          RotateArgs{x, c.rows(), c.length, heads, c.model().head_width, pairs, cos_sin, inverse});
}

NormLayer head_norm(const StepModel& m, const float* weight) {
  return {NormKind::rms, m.norm_epsilon, {weight, nullptr}, m.head_width};
}

TrainingAttentionArgs attention_args(const TrainingContext& c, const LayerWeights& layer,
                                     const AttentionActivations& kept) {
  const StepModel& m = c.model();
  return {.length = c.length,
          .heads = m.heads,
          .kv_heads = m.kv_heads,
          .head_width = m.head_width,
          .window = layer.window,
          .scale = 1.0f / std::sqrt(float(m.head_width)),
          .q = kept.q,
          .k = kept.k,
          .v = kept.v,
          .context = kept.context,
          .statistics = kept.statistics,
          .probabilities = kept.probabilities,
          .dcontext = nullptr,
          .dq = nullptr,
          .dk = nullptr,
          .dv = nullptr,
          .scratch = nullptr};
}

// Back through the head norms, in place.
void head_norm_backward(const TrainingContext& c, const float* weight, const float* raw, uint32_t heads,
                        float* normal, float* gradient) {
  const NormLayer norm = head_norm(c.model(), weight);
  norm_forward(c, norm, raw, c.rows() * heads, normal);  // for the statistics
  norm_backward(c, norm, raw, gradient, c.rows() * heads, gradient, false);
}

}  // namespace

void attention_forward(const TrainingContext& c, const LayerWeights& layer, const float* cos_sin,
                       const float* normal, const AttentionActivations& kept) {
  const StepModel& m = c.model();
  const Operand x = pack_rows(c, normal, c.rows(), m.width);
  linear_forward(c, layer.q, x, layer.q_norm ? kept.raw_q : kept.q, false);
  linear_forward(c, layer.k, x, layer.k_norm ? kept.raw_k : kept.k, false);
  linear_forward(c, layer.v, x, kept.v, false);
  if (layer.q_norm) norm_forward(c, head_norm(m, layer.q_norm), kept.raw_q, c.rows() * m.heads, kept.q);
  if (layer.k_norm) norm_forward(c, head_norm(m, layer.k_norm), kept.raw_k, c.rows() * m.kv_heads, kept.k);
  rotate(c, kept.q, m.heads, cos_sin, false);
  rotate(c, kept.k, m.kv_heads, cos_sin, false);
  c.run_units(c.training.attention_forward, attention_args(c, layer, kept), c.sequences * m.heads);
}

void attention_backward(const TrainingContext& c, const LayerWeights& layer, const float* cos_sin,
                        const AttentionActivations& kept, const float* dcontext,
                        const AttentionGradients& out) {
  const StepModel& m = c.model();
  TrainingAttentionArgs args = attention_args(c, layer, kept);
  args.dcontext = dcontext;
  args.dq = out.dq, args.dk = out.dk, args.dv = out.dv;
  c.run_units(c.training.attention_backward, args, c.sequences * m.kv_heads);
  rotate(c, out.dq, m.heads, cos_sin, true);
  rotate(c, out.dk, m.kv_heads, cos_sin, true);
  // q and k are not needed any more: they take the normal rows
  if (layer.q_norm) head_norm_backward(c, layer.q_norm, kept.raw_q, m.heads, kept.q, out.dq);
  if (layer.k_norm) head_norm_backward(c, layer.k_norm, kept.raw_k, m.kv_heads, kept.k, out.dk);
}

}  // namespace riftco
