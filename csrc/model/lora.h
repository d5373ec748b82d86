// Low-rank adapters of a model's matrices (LoRA, Hu and others 2021): y = W x + (alpha / rank) B (A x).
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "model/transformer.h"

namespace riftco {

// Matrices that can have an adapter. Numbers are those of RT_LORA_*.
enum LoraTarget : uint32_t {
  kLoraQ = 1,
  kLoraK = 2,
  kLoraV = 4,
  kLoraO = 8,
  kLoraUp = 16,
  kLoraGate = 32,
  kLoraDown = 64,
  kLoraHead = 128
};

struct LoraOptions {
  uint32_t rank = 8;                   // at most the smaller side of every target
  uint32_t targets = kLoraQ | kLoraV;  // in every layer
  double alpha = 16;
  uint64_t seed = 0;  // of A; of adapters from a file 0
};

// The linears that some targets name, in canonical order: layer by layer q, k, v, o, gate, up, down, then the head.
// invalid_argument for none, for unknown ones, and for a gate that the model does not have.
std::vector<LinearPlace> lora_places(const ModelConfig& config, uint32_t targets);

// One adapter for each place. Their parameters are "layers.3.q.lora_a" f32 [rank, inputs] and "layers.3.q.lora_b" f32
// [outputs, rank], number 2 i and 2 i + 1 those of place i.
class LoraAdapters {
 public:
  // All zero. Fails with invalid_argument or out_of_range for options that do not fit the weights.
  LoraAdapters(const Weights& weights, const LoraOptions& options, std::shared_ptr<MemoryAccount> account);

  // A becomes normal with deviation 1 / sqrt(rank), from options().seed alone; B is left.
  void draw();

  const LoraOptions& options() const noexcept { return options_; }
  const std::vector<LinearPlace>& places() const noexcept { return places_; }
  const LowRankAdapter& adapter(size_t place) const noexcept { return adapters_[place]; }
  ParameterStore& parameters() noexcept { return *parameters_; }
  const ParameterStore& parameters() const noexcept { return *parameters_; }

  // Lets steps over these weights use the adapters, and no longer.
  void install(Weights& weights) const noexcept;
  void remove(Weights& weights) const noexcept;

 private:
  LoraOptions options_;
  std::vector<LinearPlace> places_;
  std::unique_ptr<ParameterStore> parameters_;
  std::vector<LowRankAdapter> adapters_;
};

// What is attached; invalid_state where nothing is.
const std::shared_ptr<LoraAdapters>& attached_lora(const DecoderOnlyTransformer& model);

// Changes of a model; one that fails leaves it as it was.

// New adapters, which change no output yet. invalid_state where the model has some.
void attach_lora(ModelChange& change, const LoraOptions& options);
void detach_lora(ModelChange& change);

// W = W + B' A, B' = scale B: an element is one chain of fused multiply-adds over the rank, then one addition. f16 and bf16
// matrices become f32 first. unsupported, by name, for quantised matrices and for the head of a model that shares it with
// the embedding; non_finite for a result that is not.
void merge_lora(ModelChange& change);

}  // namespace riftco
