// Everything from a model file to text in one object.
//
//   artifacts::ModelSnapshot snapshot("model.gguf");
//   serving::ServingStack stack(snapshot);
//   std::cout << stack.generate("Once upon a time", {.max_new_tokens = 32}).text;
#pragma once
#include <algorithm>
#include <utility>

#include "riftco_transformer/artifacts/model_snapshot.hpp"
#include "riftco_transformer/stages/serving/config.hpp"
#include "riftco_transformer/stages/serving/decode_session.hpp"
#include "riftco_transformer/stages/serving/generation.hpp"
#include "riftco_transformer/stages/serving/kv_cache.hpp"

namespace riftco_transformer::stages::serving {

// Owns the model, its tokenizer, a cache and an engine. Serves one request at a time, from one thread at a
// time.
class ServingStack {
 public:
  explicit ServingStack(const artifacts::ModelSnapshot& snapshot, const ServingConfig& config = {})
      : ServingStack(snapshot.load(config.backend, config.threads), config) {}

  // A model that is in memory already; its own back end and threads hold.
  explicit ServingStack(artifacts::Model model, const ServingConfig& config = {})
      : maximum_new_tokens_(config.maximum_new_tokens),
        model_(std::move(model)),
        tokenizer_(model_.tokenizer()),
        cache_(make_cache(model_, config)),
        engine_(model_, tokenizer_, cache_) {}

  template <class Prompt>
  GenerationResult generate(const Prompt& prompt, const GenerationConfig& config = {}) {
    return engine_.generate(prompt, capped(config));
  }

  // Iterates over the pieces: for (const GenerationPiece& piece : stack.stream("Once")) std::cout <<
  // piece.text;
  template <class Prompt>
  GenerationStream stream(const Prompt& prompt, const GenerationConfig& config = {}) {
    return engine_.stream(prompt, capped(config));
  }

  const artifacts::Model& model() const noexcept { return model_; }
  const artifacts::Tokenizer& tokenizer() const noexcept { return tokenizer_; }
  const KeyValueCacheFactory& cache() const noexcept { return cache_; }
  GenerationEngine& engine() noexcept { return engine_; }

 private:
  static KeyValueCacheFactory make_cache(const artifacts::Model& model, const ServingConfig& config) {
    if (config.kv_cache_kind == KvCacheKind::Contiguous)
      return ContiguousKvCacheFactory(model, config.maximum_context, config.kv_cache_element);
    return PagedKvCachePool(model, config.kv_cache_block_size, config.kv_cache_block_count,
                            config.maximum_context, config.kv_cache_element);
  }

  GenerationConfig capped(GenerationConfig config) const {
    config.max_new_tokens = std::min(config.max_new_tokens, maximum_new_tokens_);
    return config;
  }

  std::uint64_t maximum_new_tokens_;
  artifacts::Model model_;
  artifacts::Tokenizer tokenizer_;
  KeyValueCacheFactory cache_;
  GenerationEngine engine_;
};

}  // namespace riftco_transformer::stages::serving
