#include "train/network.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "model/lora.h"
#include "train/norm_layer.h"
#include "train/workspace.h"

namespace riftco {
namespace {

constexpr char kStep[] = "the training step";

}  // namespace

uint64_t target_count(const TrainingBatch& batch) noexcept {
  return batch.targets.size() - uint64_t(std::ranges::count(batch.targets, kNoTarget));
}

void check_batch(const ModelConfig& config, const TrainingBatch& batch) {
  const auto fail_at = [&](const char* what, size_t i, uint32_t id) {
    fail(Status::out_of_range, "%s %u at sequence %zu, position %zu is not below the vocabulary size %u",
         what, id, i / batch.length, i % batch.length, config.vocabulary_size);
  };
  if (batch.sequences == 0 || batch.length == 0)
    fail(Status::invalid_argument, "a batch of %u sequences of %u tokens is empty", batch.sequences,
         batch.length);
  if (batch.length > config.maximum_context)
    fail(Status::context_full, "sequences of %u tokens are longer than the maximum context of %u",
         batch.length, config.maximum_context);
  const uint64_t rows = uint64_t(batch.sequences) * batch.length;
  if (batch.tokens.size() != rows || batch.targets.size() != rows)
    fail(Status::invalid_argument,
         "%u sequences of %u tokens need as many tokens and targets, not %zu and %zu", batch.sequences,
         batch.length, batch.tokens.size(), batch.targets.size());
  for (size_t i = 0; i < rows; i++) {
    if (batch.tokens[i] >= config.vocabulary_size) fail_at("token", i, batch.tokens[i]);
    if (batch.targets[i] != kNoTarget && batch.targets[i] >= config.vocabulary_size)
      fail_at("target", i, batch.targets[i]);
  }
  if (target_count(batch) == 0) fail(Status::invalid_argument, "no target of the batch counts");
}

struct TrainingNetwork::State {
  State(std::shared_ptr<const DecoderOnlyTransformer> transformer, const NetworkOptions& network_options)
      : model(std::move(transformer)),
        options(network_options),
        c{*model->device().kernels, *model->device().training, model->threads()} {}

  std::shared_ptr<const DecoderOnlyTransformer> model;
  NetworkOptions options;
  TrainingContext c;
  std::optional<TrainingWorkspace> w;
  size_t most_bytes = 0;

  // Memory for sequences of this length; kept while the shape stays.
  void prepare(uint32_t sequences, uint32_t length, bool gradients) {
    const WorkspaceShape shape = {sequences, length, gradients, gradients && !options.recompute,
                                  options.attention == TrainingAttention::materialized};
    if (!w || !(w->shape == shape)) {
      w.reset();
      w.emplace(shape, c, model->account());
    }
    most_bytes = std::max(most_bytes, w->bytes());
    for (uint32_t r = 0; r < sequences * length; r++) w->positions[r] = r % length;
    const StepModel& m = c.model();
    if (!m.inverse_frequencies.empty())
      c.run(c.kernels.rotary, RotaryArgs{m.inverse_frequencies.data(), uint32_t(m.inverse_frequencies.size()),
                                         m.rotary_scale, w->positions, length, w->cos_sin});
  }

  float* block_output(size_t layer) const {
    return layer + 1 < w->blocks.size() ? w->blocks[layer + 1].x : w->last;
  }

  void forward(const uint32_t* tokens, const CancelFlag* cancel) {
    const StepModel& m = c.model();
    c.run(c.kernels.gather,
          GatherArgs{&m.token_embedding, m.position_embedding ? &m.position_embedding : nullptr, tokens,
                     w->positions, c.rows(), w->blocks.front().x});
    for (size_t l = 0; l < m.layers.size(); l++) {
      check_cancel(cancel, kStep);
      block_forward(c, m.layers[l], w->cos_sin, w->blocks[l], w->scratch, block_output(l));
    }
  }

  NormLayer final_norm() const {
    return {c.model().norm, c.model().norm_epsilon, c.model().final_norm, c.model().width};
  }

  // Losses of all rows; scale > 0: also the gradients of the head and, in dx, of what the last block gave.
  void head(const uint32_t* targets, float scale, const CancelFlag* cancel) {
    const StepModel& m = c.model();
    norm_forward(c, final_norm(), w->last, c.rows(), w->scratch.normal);
    for (uint32_t first = 0; first < c.rows(); first += w->head_rows) {
      check_cancel(cancel, kStep);
      const uint32_t rows = std::min(w->head_rows, c.rows() - first);
      const float* x = w->scratch.normal + size_t(first) * m.width;
      linear_forward(c, m.head, pack_rows(c, x, rows, m.width), w->logits, false);
      c.run(c.training.cross_entropy,
            CrossEntropyArgs{w->logits, targets + first, rows, m.vocabulary, scale, w->losses + first});
      if (!(scale > 0)) continue;
      linear_parameter_gradients(c, m.head, linear_input(c, x, rows, m.width, {&m.head}), rows, w->logits);
      linear_input_gradient(c, m.head, rows, w->logits, w->scratch.d_normal + size_t(first) * m.width, false);
    }
    if (scale > 0) norm_backward(c, final_norm(), w->last, w->scratch.d_normal, c.rows(), w->dx, false);
  }

  void backward(const uint32_t* tokens, const CancelFlag* cancel) {
    const StepModel& m = c.model();
    for (size_t l = m.layers.size(); l-- > 0;) {
      check_cancel(cancel, kStep);
      if (options.recompute)  // what it gives is not needed, and d_normal is free
        block_forward(c, m.layers[l], w->cos_sin, w->blocks[l], w->scratch, w->scratch.d_normal);
      block_backward(c, m.layers[l], w->cos_sin, w->blocks[l], w->scratch, w->dx);
    }
    const auto scatter = [&](const PackedMatrix& table, const uint32_t* index) {
      if (float* gradient = c.gradient_of(table.data))
        c.run(c.training.scatter_rows, ScatterArgs{w->dx, index, c.rows(), m.width, gradient});
    };
    scatter(m.token_embedding, tokens);
    scatter(m.position_embedding, w->positions);
  }

  double run(const TrainingBatch& batch, bool gradients) {
    c.step_model = &model->weights().step_model();
    const uint32_t most =
        options.micro_batch ? std::min(options.micro_batch, batch.sequences) : batch.sequences;
    if (uint64_t(most) * batch.length > UINT32_MAX)
      fail(Status::overflow, "%u sequences of %u tokens are too many at a time: use micro-batches", most,
           batch.length);
    const double count = double(target_count(batch));
    double total = 0;
    for (uint32_t first = 0; first < batch.sequences; first += most) {
      c.sequences = std::min(most, batch.sequences - first), c.length = batch.length;
      prepare(c.sequences, c.length, gradients);
      const uint32_t* tokens = batch.tokens.data() + size_t(first) * batch.length;
      forward(tokens, batch.cancel);
      head(batch.targets.data() + size_t(first) * batch.length, gradients ? float(1 / count) : 0,
           batch.cancel);
      for (uint32_t r = 0; r < c.rows(); r++) total += double(w->losses[r]);
      if (!std::isfinite(total)) fail(Status::non_finite, "the loss is not finite");
      if (gradients) backward(tokens, batch.cancel);
    }
    return total / count;
  }
};

TrainingNetwork::TrainingNetwork(std::shared_ptr<const DecoderOnlyTransformer> model,
                                 const NetworkOptions& options)
    : state_(std::make_unique<State>(std::move(model), options)) {}

TrainingNetwork::~TrainingNetwork() = default;

size_t TrainingNetwork::activation_bytes() const noexcept { return state_->most_bytes; }

double TrainingNetwork::loss(const TrainingBatch& batch) {
  state_->c.gradients.clear();
  return state_->run(batch, false);
}

double TrainingNetwork::loss_and_gradients(const TrainingBatch& batch, ParameterStore& gradients) {
  State& s = *state_;
  s.c.gradients.clear();
  const ParameterStore& weights = s.model->weights();
  const ParameterStore& parameters = s.model->lora() ? s.model->lora()->parameters() : weights;
  for (size_t i = 0; i < parameters.parameters().size(); i++)
    s.c.gradients.emplace(parameters.data(i), reinterpret_cast<float*>(gradients.data(i)));
  s.c.threads.run([&](const Region& region) {
    std::byte* all = gradients.data(0);
    const size_t begin = gradients.bytes() * region.index() / region.count(),
                 end = gradients.bytes() * (region.index() + 1) / region.count();
    std::memset(all + begin, 0, end - begin);
  });
  return s.run(batch, true);
}

}  // namespace riftco
