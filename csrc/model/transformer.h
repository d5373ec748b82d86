// The one model class: a config, packed weights on a device, the steps over them, and the rules for changing them.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>

#include "core/step_executor.h"
#include "model/config.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace riftco {

// What a model's file said beside what is computed, as text by key.
using ModelMetadata = std::map<std::string, std::string, std::less<>>;

class LoraAdapters;

class DecoderOnlyTransformer {
 public:
  // Takes complete weights. `tokenizer` may be null. `account` is charged for weights and activations.
  DecoderOnlyTransformer(std::unique_ptr<Weights> weights, std::shared_ptr<const Tokenizer> tokenizer,
                         std::shared_ptr<MemoryAccount> account, std::shared_ptr<ThreadPool> threads,
                         ModelMetadata metadata = {});

  const ModelConfig& config() const noexcept { return weights_->config(); }
  const Device& device() const noexcept { return weights_->device(); }
  const Weights& weights() const noexcept { return *weights_; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const noexcept { return tokenizer_; }
  const ModelMetadata& metadata() const noexcept { return metadata_; }
  ThreadPool& threads() const noexcept { return executor_->threads(); }

  const std::shared_ptr<LoraAdapters>& lora() const noexcept { return lora_; }  // null: none attached

  // Parameter number `index` or of this name; those of adapters come behind the model's own. out_of_range where there is none.
  size_t parameter_count() const noexcept;
  const ParameterInfo& parameter(size_t index) const;
  void read_parameter(std::string_view name, float* values) const;
  const ParameterInfo& parameter(std::string_view name) const;

  // Weights, adapters and activations in memory.
  uint64_t memory_bytes() const noexcept { return account_->bytes(); }
  const std::shared_ptr<MemoryAccount>& account() const noexcept { return account_; }

  // The geometry of its caches with this page size and element type.
  KvGeometry kv_geometry(uint32_t page_size, DType element = DType::f32) const noexcept;

  // Reserves the activation memory of steps with contexts of up to `longest_context` tokens.
  void reserve(uint32_t longest_context) const;

  // The inference forward; the contract is StepExecutor::run's. Tokens and positions are the caller's to check
  // (check_token).
  void run(const StepBatch& batch) const;

  // Fails with out_of_range unless token is below the vocabulary size.
  void check_token(uint32_t token) const;

  // A checksum of config, weights, adapters and the way of computing: equal for equal models, on any machine. Computed at the first
  // call after a change, in about the time that unpacking all weights takes.
  std::string fingerprint() const;

  // Of config and weights alone, computed at each call.
  std::string weights_fingerprint() const;

  // Decode sessions alive.
  uint64_t session_count() const noexcept { return sessions_.load(); }

  // Changes of parameters so far: what was computed under another epoch is stale.
  uint64_t parameter_epoch() const noexcept { return epoch_.load(); }

  // How often adapters were merged.
  uint64_t merge_count() const noexcept { return merges_.load(); }

  // Holds off changes while parameters are read by whoever has no session.
  std::shared_lock<std::shared_mutex> reading() const { return std::shared_lock(parameters_mutex_); }

 private:
  friend class SessionHold;
  friend class ModelChange;
  struct Place {
    ParameterStore* store;
    size_t index;
  };
  Place find(std::string_view name) const;

  std::unique_ptr<Weights> weights_;
  std::shared_ptr<LoraAdapters> lora_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<MemoryAccount> account_;
  ModelMetadata metadata_;
  std::unique_ptr<StepExecutor> executor_;
  mutable std::shared_mutex parameters_mutex_;
  mutable std::atomic<uint64_t> sessions_{0};
  std::atomic<uint64_t> epoch_{0}, merges_{0};
  mutable std::mutex fingerprint_mutex_;
  mutable std::string fingerprint_;         // guarded by fingerprint_mutex_; empty: not computed
  mutable uint64_t fingerprint_epoch_ = 0;  // what it is of; guarded too
};

// Keeps a model alive and counts one of its sessions.
class SessionHold {
 public:
  explicit SessionHold(std::shared_ptr<const DecoderOnlyTransformer> model) : model_(std::move(model)) {
    const auto lock = model_->reading();
    model_->sessions_++;
  }
  SessionHold(const SessionHold&) = delete;
  SessionHold& operator=(const SessionHold&) = delete;
  ~SessionHold() { model_->sessions_--; }
  const std::shared_ptr<const DecoderOnlyTransformer>& model() const noexcept { return model_; }

 private:
  std::shared_ptr<const DecoderOnlyTransformer> model_;
};

// The right to change parameters: no session is alive, none is made and nobody reads until its end.
class ModelChange {
 public:
  // Fails with invalid_state while decode sessions are alive; `what` names the change in the message.
  ModelChange(DecoderOnlyTransformer& model, const char* what);

  DecoderOnlyTransformer& model() noexcept { return model_; }
  Weights& weights() noexcept { return *model_.weights_; }

  // invalid_state where adapters are attached.
  void check_unadapted() const;

  // Puts these adapters in the place of those that are attached; null: none. Commits.
  void set_lora(std::shared_ptr<LoraAdapters> lora) noexcept;

  // The adapters that are attached are part of the weights now. Commits.
  void finish_merge() noexcept;

  // f16 and bf16 matrices become f32, exactly, and are computed exactly; quantised ones stay. Commits, where there were some.
  void widen();

  // All values of a parameter; f16 and bf16 round to nearest even. Commits. Fails with out_of_range (no such name),
  // invalid_argument (another number of values), unsupported (quantised) or non_finite, and then nothing has changed.
  void write_parameter(std::string_view name, std::span<const float> values);

  // Something did change: a new epoch begins.
  void commit() noexcept { model_.epoch_++; }

 private:
  DecoderOnlyTransformer& model_;
  std::unique_lock<std::shared_mutex> lock_;
};

}  // namespace riftco
