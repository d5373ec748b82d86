// Trains a model's adapters where it has some, else all its parameters, in place.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>

#include "model/lora.h"
#include "model/transformer.h"
#include "train/checkpoint.h"
#include "train/network.h"
#include "train/optimizer.h"
#include "train/schedule.h"

namespace riftco {

struct TrainerOptions {
  OptimizerOptions optimizer;
  Schedule schedule;
  NetworkOptions network;
};

struct TrainingMetrics {
  double loss;           // mean over the counted targets before the update, nats
  double gradient_norm;  // before clipping
  double learning_rate;  // of this update
  uint64_t target_count;
  uint64_t step;  // updates made
};

// Not thread-safe. A call that fails leaves the model and the trainer as they were.
class Trainer {
 public:
  // f16 and bf16 matrices become f32 first, where all parameters are trained; unsupported for quantised ones.
  Trainer(std::shared_ptr<DecoderOnlyTransformer> model, const TrainerOptions& options);

  const DecoderOnlyTransformer& model() const noexcept { return *model_; }

  // What step() checks first: invalid_state while sessions are alive, and where adapters came or went since the trainer was
  // made.
  void check_state() const;

  // One update, all or nothing. non_finite: the loss or a gradient.
  TrainingMetrics step(const TrainingBatch& batch);

  uint64_t steps() const noexcept { return optimizer_.step(); }
  uint64_t trained_count() const noexcept;  // elements
  size_t optimizer_bytes() const noexcept { return gradients_.bytes() + optimizer_.bytes(); }
  size_t activation_bytes() const noexcept { return network_.activation_bytes(); }

  // invalid_state before the first step, and after a step or load that failed.
  void check_gradients() const;
  // Before clipping, of the last step; out_of_range for a parameter that is not trained.
  const ParameterInfo& gradient_info(std::string_view name) const;
  void read_gradient(std::string_view name, float* values) const;

  // train/checkpoint.h.
  void save(std::string_view path, std::string_view state, const CancelFlag* cancel) const;
  void load(std::string_view path, const CancelFlag* cancel);

 private:
  void check_adapters() const;
  size_t trained_index(std::string_view name) const;
  const ParameterStore& trained() const noexcept;
  CheckpointOrigin origin() const;

  std::shared_ptr<DecoderOnlyTransformer> model_;
  std::shared_ptr<LoraAdapters> lora_;  // those that are trained; null: all parameters
  uint64_t merges_;                     // of adapters into the model, before
  TrainerOptions options_;
  ParameterStore gradients_;
  Optimizer optimizer_;
  bool has_gradients_ = false;
  TrainingNetwork network_;
};

}  // namespace riftco
