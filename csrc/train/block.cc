#include "train/block.h"

#include <cstring>

#include "train/norm_layer.h"

namespace riftco {
namespace {

NormLayer norm_of(const StepModel& m, const NormWeights& weights) {
  return {m.norm, m.norm_epsilon, weights, m.width};
}

void mlp_forward(const TrainingContext& c, const LayerWeights& layer, const BlockActivations& kept,
                 const BlockScratch& s, float* out) {
  const StepModel& m = c.model();
  norm_forward(c, norm_of(m, layer.mlp_norm), kept.middle, c.rows(), s.normal);
  const Operand x = pack_rows(c, s.normal, c.rows(), m.width);
  linear_forward(c, layer.up, x, kept.up, false);
  if (layer.gate) linear_forward(c, layer.gate, x, kept.gate, false);
  const Operand y{c.operand, c.rows(), m.mlp_width, kOperandFloat};
  c.run(c.kernels.activate, ActivateArgs{m.activation, kept.gate, kept.up, y});
  std::memcpy(out, kept.middle, size_t(c.rows()) * m.width * sizeof(float));
  linear_forward(c, layer.down, y, out, true);
}

void mlp_backward(const TrainingContext& c, const LayerWeights& layer, const BlockActivations& kept,
                  const BlockScratch& s, float* dx) {
  const StepModel& m = c.model();
  const uint32_t rows = c.rows();
  linear_input_gradient(c, layer.down, rows, dx, s.d_up, false);
  c.run(c.training.activation_backward,  // d_up: of y before, of up behind it
        ActivationBackwardArgs{m.activation, size_t(rows) * m.mlp_width, kept.gate, kept.up, s.y, s.d_up,
                               s.d_gate});
  linear_parameter_gradients(c, layer.down, linear_input(c, s.y, rows, m.mlp_width, {&layer.down}), rows, dx);
  const NormLayer norm = norm_of(m, layer.mlp_norm);
  norm_forward(c, norm, kept.middle, rows, s.normal);
  const LinearInput x = linear_input(c, s.normal, rows, m.width, {&layer.up, &layer.gate});
  linear_parameter_gradients(c, layer.up, x, rows, s.d_up);
  if (layer.gate) linear_parameter_gradients(c, layer.gate, x, rows, s.d_gate);
  linear_input_gradient(c, layer.up, rows, s.d_up, s.d_normal, false);
  if (layer.gate) linear_input_gradient(c, layer.gate, rows, s.d_gate, s.d_normal, true);
  norm_backward(c, norm, kept.middle, s.d_normal, rows, dx, true);
}

void mix_backward(const TrainingContext& c, const LayerWeights& layer, const float* cos_sin,
                  const BlockActivations& kept, const BlockScratch& s, float* dx) {
  const StepModel& m = c.model();
  const uint32_t rows = c.rows();
  linear_parameter_gradients(
      c, layer.o, linear_input(c, kept.attention.context, rows, layer.o.inputs, {&layer.o}), rows, dx);
  linear_input_gradient(c, layer.o, rows, dx, s.d_context, false);
  const AttentionGradients& d = s.d_attention;
  attention_backward(c, layer, cos_sin, kept.attention, s.d_context, d);
  const NormLayer norm = norm_of(m, layer.attention_norm);
  norm_forward(c, norm, kept.x, rows, s.normal);
  const LinearInput x = linear_input(c, s.normal, rows, m.width, {&layer.q, &layer.k, &layer.v});
  linear_parameter_gradients(c, layer.q, x, rows, d.dq);
  linear_parameter_gradients(c, layer.k, x, rows, d.dk);
  linear_parameter_gradients(c, layer.v, x, rows, d.dv);
  linear_input_gradient(c, layer.q, rows, d.dq, s.d_normal, false);
  linear_input_gradient(c, layer.k, rows, d.dk, s.d_normal, true);
  linear_input_gradient(c, layer.v, rows, d.dv, s.d_normal, true);
  norm_backward(c, norm, kept.x, s.d_normal, rows, dx, true);
}

}  // namespace

void block_forward(const TrainingContext& c, const LayerWeights& layer, const float* cos_sin,
                   const BlockActivations& kept, const BlockScratch& s, float* out) {
  const StepModel& m = c.model();
  const uint32_t rows = c.rows();
  norm_forward(c, norm_of(m, layer.attention_norm), kept.x, rows, s.normal);
  attention_forward(c, layer, cos_sin, s.normal, kept.attention);
  std::memcpy(kept.middle, kept.x, size_t(rows) * m.width * sizeof(float));
  linear_forward(c, layer.o, pack_rows(c, kept.attention.context, rows, layer.o.inputs), kept.middle, true);
  mlp_forward(c, layer, kept, s, out);
}

void block_backward(const TrainingContext& c, const LayerWeights& layer, const float* cos_sin,
                    const BlockActivations& kept, const BlockScratch& s, float* dx) {
  mlp_backward(c, layer, kept, s, dx);
  mix_backward(c, layer, cos_sin, kept, s, dx);
}

}  // namespace riftco
