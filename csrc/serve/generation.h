// Generation: a prompt in, then one sampled token and its text at a time.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "model/transformer.h"
#include "serve/decode_session.h"
#include "serve/kv_cache.h"
#include "serve/logit_rules.h"
#include "serve/prompt_lookup.h"
#include "serve/sampler.h"
#include "serve/stop_strings.h"
#include "text/stream_decoder.h"

namespace riftco {

// What happens when the context is full and another token is wanted. Numbers are those of RT_ROLLOVER_*.
enum class Rollover : int32_t {
  by_position = 0,  // window for learned positions, stop for rotary ones
  window = 1,       // replay the newest maximum_context tokens from position 0
  keep = 2,         // replay the newest rollover_keep tokens from position 0
  stop = 3,         // finish with `length`; a prompt that is too long is context_full
};

// Numbers are those of RT_FINISH_*.
enum class Finish : int32_t { none = 0, eos = 1, stop = 2, length = 3 };

struct GenerationOptions {
  uint64_t max_new_tokens = 256;  // at least 1
  SamplerOptions sampling = {};
  LogitRules rules = {};
  uint64_t min_new_tokens = 0;  // before them end-of-generation and stop tokens are barred
  bool ignore_eos = false;      // end-of-generation tokens are ordinary
  bool parse_special = false;   // special tokens in the prompt's text are read as such
  Rollover rollover = Rollover::by_position;
  uint32_t rollover_keep = 0;  // 1 .. maximum_context - 1 with `keep`, else 0
  std::vector<std::string> stop_strings = {};
  std::vector<uint32_t> stop_tokens = {};
  uint32_t speculation = 0;  // tokens guessed and decoded ahead in one step, at most PromptLookup::kMaxGuess
  const CancelFlag* cancel = nullptr;  // looked at by start, next and logits; outlives the generation
};

struct GenerationPiece {
  static constexpr uint32_t kNoToken = UINT32_MAX;

  std::string_view bytes;  // text that became certain; valid until the generator's next call
  uint32_t token = kNoToken;
  Finish finish = Finish::none;
  TokenProbability probability = {kNoToken, 0, 0};
  std::span<const TokenProbability> alternatives = {};  // valid until the generator's next call
};

struct GenerationStats {
  uint64_t prompt_tokens = 0;  // of the prompt as given
  uint64_t reused_tokens = 0;  // of them already in the cache
  uint64_t new_tokens = 0;     // sampled so far
  uint64_t rollovers = 0;
  double prefill_seconds = 0;    // computing the prompt tokens that were not reused
  double decode_seconds = 0;     // all steps after it, replays included
  uint64_t drafted_tokens = 0;   // decoded ahead by speculation
  uint64_t accepted_tokens = 0;  // of them sampled
};

// Keeps its cache between generations, to use what a new prompt shares with it; holds a session of the model
// only while one is running. Not thread-safe.
class Generator {
 public:
  // `tokenizer` null: the model's; a model without one generates from token ids, with empty text. `factory`
  // null: a paged cache of one full context.
  Generator(std::shared_ptr<const DecoderOnlyTransformer> model, std::shared_ptr<const Tokenizer> tokenizer,
            std::shared_ptr<KeyValueCacheFactory> factory);

  const DecoderOnlyTransformer& model() const noexcept { return *model_; }

  // A second generator that goes on from the same point of the running generation, over shared pages, with the random
  // numbers of stream `choice` (a generation that was started has 0). invalid_state when none is running.
  std::unique_ptr<Generator> fork(uint64_t choice) const;

  // Begins a generation; one that was running is dropped. On failure none is running.
  void start(std::string_view prompt, const GenerationOptions& options);
  void start_tokens(std::span<const uint32_t> tokens, const GenerationOptions& options);
  void drop_running() noexcept;

  // Samples one token. The token of the call before is decoded here or in logits(), the last one of a
  // generation never. invalid_state unless a generation is running. A failure loses nothing: the next call
  // goes on.
  GenerationPiece next();

  // The row that the next call samples from, writable; valid until the generator's next call.
  std::span<float> logits();

  const GenerationStats& stats() const noexcept { return stats_; }
  const KeyValueCache& cache() const noexcept { return *cache_; }

 private:
  Generator(const Generator& other, std::unique_ptr<KeyValueCache> cache);
  void begin(std::vector<uint32_t> prompt, const GenerationOptions& options);
  void adopt(const GenerationOptions& options);
  void drop_stale_cache();
  void load_prompt(std::vector<uint32_t> prompt);
  void require_running() const;
  void decode_pending();
  bool decode_draft(std::span<const uint32_t> pending);
  bool follow_draft(uint32_t token) noexcept;
  void forget_draft(size_t known) noexcept;
  std::span<float> row() noexcept;
  Finish finish_by_token(uint32_t token) const noexcept;
  bool next_fits() const noexcept;
  void flush_text();

  std::shared_ptr<const DecoderOnlyTransformer> model_;
  std::shared_ptr<const Tokenizer> tokenizer_;  // may be null
  std::shared_ptr<KeyValueCacheFactory> factory_;
  std::unique_ptr<KeyValueCache> cache_;

  std::vector<uint32_t> history_;  // prompt and new tokens; the cache holds its tokens from context_start_ on
  size_t context_start_ = 0;
  uint64_t epoch_;  // of the model's parameters that the cache was filled with

  std::optional<SessionHold> hold_;  // present while a generation is running
  GenerationOptions options_;        // of that generation; rollover is resolved
  std::vector<uint32_t> barred_;     // before its min_new_tokens
  LogitProcessor processor_;
  Sampler sampler_;
  std::optional<StreamDecoder> decoder_;
  StopStrings stop_strings_;
  PromptLookup lookup_;
  std::vector<uint32_t>
      draft_;  // decoded in one step: the newest token then, and a guess of those that follow; or empty
  std::vector<float> logits_;  // rows of [vocabulary], after each token of draft_
  size_t row_ = 0;             // the one of them that follows the newest token of history_,
  bool logits_ready_ = false;  // if this is so
  std::string text_;           // the bytes of the last piece
  GenerationStats stats_;
};

}  // namespace riftco
