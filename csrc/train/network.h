// A whole model in training: the forward pass that keeps activations, the loss, and the backward pass.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "base/cancel.h"
#include "model/transformer.h"

namespace riftco {

inline constexpr uint32_t kNoTarget = UINT32_MAX;  // a position that does not count

struct TrainingBatch {
  std::span<const uint32_t> tokens;   // [sequences, length]
  std::span<const uint32_t> targets;  // [sequences, length]: what each position is to predict, or kNoTarget
  uint32_t sequences = 0, length = 0;
  const CancelFlag* cancel = nullptr;  // looked at per layer
};

// Targets of a batch that count.
uint64_t target_count(const TrainingBatch& batch) noexcept;

// flash keeps row statistics, materialized the probabilities [sequences, heads, length, length]: the same result.
enum class TrainingAttention : uint8_t { flash, materialized };

struct NetworkOptions {
  TrainingAttention attention = TrainingAttention::flash;
  uint32_t micro_batch = 0;  // sequences worked on at a time; 0: all
  bool recompute = false;    // keep only what enters a block and compute its inside again on the way back
};

// Fails unless the tokens and targets are below the vocabulary size, the sizes agree, the length is at most the maximum
// context and one target at least counts.
void check_batch(const ModelConfig& config, const TrainingBatch& batch);

// Uses the model's parameters (f32, or any type in frozen matrices) and threads; the caller holds off changes. Not thread-safe.
class TrainingNetwork {
 public:
  TrainingNetwork(std::shared_ptr<const DecoderOnlyTransformer> model, const NetworkOptions& options);
  ~TrainingNetwork();

  // Mean cross-entropy (nats) over the counted targets of a checked batch.
  double loss(const TrainingBatch& batch);

  // The same, and its gradients, which replace what is in `gradients`: a store of the parameters to train, of the model's
  // adapters where it has some, else of its weights. After a failure the store holds anything. Fails with cancelled or
  // non_finite (the loss).
  double loss_and_gradients(const TrainingBatch& batch, ParameterStore& gradients);

  // Activation memory, of the largest batch so far.
  size_t activation_bytes() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace riftco
