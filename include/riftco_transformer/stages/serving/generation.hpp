// Text generation over a model, a tokenizer and a cache.
#pragma once
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "riftco/generate.h"
#include "riftco_transformer/artifacts/model.hpp"
#include "riftco_transformer/artifacts/tokenizer.hpp"
#include "riftco_transformer/stages/serving/config.hpp"
#include "riftco_transformer/stages/serving/kv_cache.hpp"

namespace riftco_transformer::stages::serving {

enum class FinishReason : std::int32_t {
  None = RT_FINISH_NONE,          // not finished
  EndOfSequence = RT_FINISH_EOS,  // an end-of-generation token
  Stop = RT_FINISH_STOP,          // a stop string or stop token
  Length = RT_FINISH_LENGTH       // max_new_tokens, or the context is full
};

struct GenerationPiece {
  std::string_view text;  // became certain with this token, maybe empty; valid until the engine's next call
  std::optional<std::uint32_t> token;   // none in a last piece that only gives what was held back
  float log_probability = 0;            // of the token under the raw distribution (rt_token_probability)
  float processed_log_probability = 0;  // under the one that it was drawn from
  FinishReason finish = FinishReason::None;
  std::span<const rt_token_probability> alternatives = {};  // best first; valid until the engine's next call
};

struct GenerationResult {
  std::string text;
  std::vector<std::uint32_t> tokens;
  std::vector<float> log_probabilities;  // one for each token
  FinishReason finish = FinishReason::None;
  rt_generation_stats statistics = {};
};

class GenerationStream;

// Serves one request at a time, from one thread at a time. A call that throws loses nothing, and the next may
// go on.
class GenerationEngine {
 public:
  GenerationEngine(const artifacts::Model& model, const artifacts::Tokenizer& tokenizer,
                   const KeyValueCacheFactory& factory)
      : handle_(detail::make<Handle>(rt_generator_create, model.get(), tokenizer.get(), factory.get())) {}

  // Encodes the prompt and prefills it. A generation that was running is dropped.
  void start(std::string_view prompt, const GenerationConfig& config = {}) {
    const Options options(config);
    detail::check(rt_generator_start(get(), prompt.data(), prompt.size(), &options.value));
  }
  void start(std::span<const std::uint32_t> prompt, const GenerationConfig& config = {}) {
    const Options options(config);
    detail::check(rt_generator_start_tokens(get(), prompt.data(), prompt.size(), &options.value));
  }

  // An engine that goes on from the same point of the running generation, over shared pages, with random numbers of its
  // own: choice i of a prompt. A generation that was started is choice 0.
  GenerationEngine fork(std::uint64_t choice) const {
    return GenerationEngine(detail::make<Handle>(rt_generator_fork, get(), choice));
  }

  // Ends the running generation, if there is one.
  void stop() { detail::check(rt_generator_stop(get())); }

  // Samples a token; to be called until the piece's `finish` is not None.
  GenerationPiece next() {
    rt_generation_piece piece{};
    piece.struct_size = sizeof piece;
    detail::check(rt_generator_next(get(), &piece));
    return {std::string_view(piece.bytes, piece.size),
            piece.token == RT_NO_TOKEN ? std::nullopt : std::optional(piece.token),
            piece.log_probability,
            piece.processed_log_probability,
            FinishReason(piece.finish),
            std::span(piece.alternatives, piece.alternative_count)};
  }

  // What next() will sample from, [vocabulary_size], writable; valid until the engine's next call.
  std::span<float> logits() {
    float* logits = nullptr;
    std::uint64_t count = 0;
    detail::check(rt_generator_logits(get(), &logits, &count));
    return {logits, static_cast<std::size_t>(count)};
  }

  // Starts, and iterates over the pieces: for (const GenerationPiece& piece : engine.stream("Once"))
  // std::cout << piece.text;
  template <class Prompt>
  GenerationStream stream(const Prompt& prompt, const GenerationConfig& config = {});

  // Everything at once.
  template <class Prompt>
  GenerationResult generate(const Prompt& prompt, const GenerationConfig& config = {}) {
    start(prompt, config);
    return finish();
  }

  // The rest of the running generation.
  GenerationResult finish() {
    GenerationResult result;
    while (result.finish == FinishReason::None) {
      const GenerationPiece piece = next();
      result.text += piece.text;
      if (piece.token) {
        result.tokens.push_back(*piece.token);
        result.log_probabilities.push_back(piece.log_probability);
      }
      result.finish = piece.finish;
    }
    result.statistics = statistics();
    return result;
  }

  rt_generation_stats statistics() const {
    rt_generation_stats stats{};
    stats.struct_size = sizeof stats;
    detail::check(rt_generator_get_stats(get(), &stats));
    return stats;
  }

  rt_generator* get() const noexcept { return handle_.get(); }

 private:
  using Handle = detail::Owned<rt_generator, rt_generator_release>;

  explicit GenerationEngine(Handle handle) : handle_(std::move(handle)) {}

  // The C struct of a config; refers into it.
  struct Options {
    explicit Options(const GenerationConfig& config)
        : value(detail::defaults<rt_generation_options>(rt_generation_options_init)) {
      for (const std::string& text : config.stop_strings) stop_strings.push_back({text.data(), text.size()});
      for (const LogitBias& bias : config.logit_bias) logit_bias.push_back({bias.token, bias.bias});
      value.max_new_tokens = config.max_new_tokens;
      value.seed = config.seed;
      value.temperature = config.temperature;
      value.top_p = config.top_p;
      value.min_p = config.min_p;
      value.top_k = config.top_k;
      value.ignore_eos = config.ignore_eos;
      value.parse_special = config.parse_special;
      value.rollover = static_cast<std::int32_t>(config.rollover);
      value.rollover_keep = config.rollover_keep;
      value.stop_strings = stop_strings.data();
      value.stop_string_count = stop_strings.size();
      value.stop_tokens = config.stop_tokens.data();
      value.stop_token_count = config.stop_tokens.size();
      value.min_new_tokens = config.min_new_tokens;
      value.repetition_penalty = config.repetition_penalty;
      value.presence_penalty = config.presence_penalty;
      value.frequency_penalty = config.frequency_penalty;
      value.penalty_window = config.penalty_window;
      value.logit_bias = logit_bias.data();
      value.logit_bias_count = logit_bias.size();
      value.alternatives = config.alternatives;
      value.speculation = config.speculation;
      value.cancel = config.cancel ? config.cancel->get() : nullptr;
    }
    Options(const Options&) = delete;
    Options& operator=(const Options&) = delete;

    std::vector<rt_text> stop_strings;
    std::vector<rt_logit_bias> logit_bias;
    rt_generation_options value;
  };

  Handle handle_;
};

// The pieces of one generation; a single pass. The engine must outlive it.
class GenerationStream {
 public:
  class Iterator {
   public:
    using value_type = GenerationPiece;
    using difference_type = std::ptrdiff_t;

    explicit Iterator(GenerationEngine& engine) : engine_(&engine), piece_(engine.next()) {}
    const GenerationPiece& operator*() const noexcept { return piece_; }
    const GenerationPiece* operator->() const noexcept { return &piece_; }
    Iterator& operator++() {
      if (piece_.finish == FinishReason::None) {
        piece_ = engine_->next();
      } else {
        engine_ = nullptr;
      }
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const noexcept { return engine_ == nullptr; }

   private:
    GenerationEngine* engine_;  // null after the last piece
    GenerationPiece piece_;
  };

  explicit GenerationStream(GenerationEngine& engine) noexcept : engine_(&engine) {}
  Iterator begin() const { return Iterator(*engine_); }
  std::default_sentinel_t end() const noexcept { return {}; }

 private:
  GenerationEngine* engine_;
};

template <class Prompt>
GenerationStream GenerationEngine::stream(const Prompt& prompt, const GenerationConfig& config) {
  start(prompt, config);
  return GenerationStream(*this);
}

}  // namespace riftco_transformer::stages::serving
