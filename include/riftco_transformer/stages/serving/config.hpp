// What a serving stack and a generation can be told.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "riftco/generate.h"
#include "riftco_transformer/core/backend.hpp"
#include "riftco_transformer/core/cancel.hpp"

namespace riftco_transformer::stages::serving {

enum class KvCacheKind : std::int32_t { Contiguous = RT_KV_CACHE_CONTIGUOUS, Paged = RT_KV_CACHE_PAGED };

// What keys and values are kept as. F16 and BF16 halve a cache's memory and round what is written.
enum class KvElement : std::int32_t {
  F32 = RT_KV_ELEMENT_F32,
  F16 = RT_KV_ELEMENT_F16,
  BF16 = RT_KV_ELEMENT_BF16
};

struct ServingConfig {
  ExecutionBackend backend = ExecutionBackend::Cpu;
  std::uint64_t maximum_new_tokens = 256;  // caps every request
  KvCacheKind kv_cache_kind = KvCacheKind::Paged;
  std::uint64_t kv_cache_block_size = 16;  // tokens per page; paged only
  std::uint64_t kv_cache_block_count = 0;  // pages; 0: one full context; paged only
  std::uint64_t maximum_context = 0;       // positions of the cache; 0: the model's
  KvElement kv_cache_element = KvElement::F32;
  std::uint32_t threads = 0;  // 0: the CPUs that the process may use
};

// What happens when the context is full and another token is wanted.
enum class Rollover : std::int32_t {
  Default = RT_ROLLOVER_DEFAULT,  // Window for learned positions, Stop for rotary ones
  Window = RT_ROLLOVER_WINDOW,    // replay the newest maximum_context tokens
  Keep = RT_ROLLOVER_KEEP,        // replay the newest rollover_keep tokens
  Stop = RT_ROLLOVER_STOP         // finish with FinishReason::Length
};

struct LogitBias {
  std::uint32_t token;
  float bias;  // added to the token's logit; minus infinity bars it
};

// The order in which these choose a token: riftco/generate.h.
struct GenerationConfig {
  std::uint64_t max_new_tokens = 256;
  float temperature = 0;       // 0: greedy; then the filters are not used
  std::uint32_t top_k = 0;     // 0: off
  float top_p = 1;             // 1: off
  float min_p = 0;             // 0: off
  std::uint64_t seed = 0;      // the same seed gives the same tokens
  bool ignore_eos = false;     // end-of-generation tokens are ordinary
  bool parse_special = false;  // read special tokens in the prompt's text as such
  Rollover rollover = Rollover::Default;
  std::uint32_t rollover_keep = 0;  // tokens, with Rollover::Keep
  std::vector<std::string> stop_strings = {};
  std::vector<std::uint32_t> stop_tokens = {};
  std::uint64_t min_new_tokens = 0;  // before them end-of-generation and stop tokens are barred
  float repetition_penalty = 1;      // 1: off
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::uint32_t penalty_window = 0;  // newest tokens that the penalties look at; 0: all
  std::vector<LogitBias> logit_bias = {};
  std::uint32_t alternatives = 0;  // most likely tokens to tell with each piece, at most RT_MAX_ALTERNATIVES
  std::uint32_t speculation = 0;   // tokens guessed ahead and checked in one step, at most RT_MAX_SPECULATION
  const CancelFlag* cancel = nullptr;  // kept alive by the caller until the generation has ended
};

}  // namespace riftco_transformer::stages::serving
