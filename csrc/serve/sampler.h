// Picks the next token from a row of logits. Deterministic: a function of the row, the options and the
// token's index.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/kernels.h"

namespace riftco {

// The filters apply in the order of the fields, on the tokens that the one before kept; then one draw among
// the rest.
struct SamplerOptions {
  float temperature = 0;  // 0: greedy, the most likely token (the lowest id among equals), no filter is used
  uint32_t top_k = 0;     // the k most likely tokens; 0: off
  float top_p = 1;        // (0, 1]: the fewest most likely tokens whose share is at least this
  float min_p = 0;        // [0, 1]: tokens at least this times as likely as the most likely one
  uint64_t seed = 0;
  uint64_t stream = 0;        // of random numbers under that seed
  uint32_t alternatives = 0;  // how many of the most likely tokens to tell, at most kMaxAlternatives
};

inline constexpr uint32_t kMaxAlternatives = 64;

// Fails with invalid_argument, naming field and value.
void validate(const SamplerOptions& options);

// Two distributions: the raw one is softmax of the raw row; the processed one is what the token was drawn from, softmax of
// the processed row at the temperature over the tokens that the filters kept (temperature 0: at 1, over all).
struct TokenProbability {
  uint32_t token;
  float log_probability;            // under the raw distribution
  float processed_log_probability;  // minus infinity: it could not be drawn
};

class Sampler {
 public:
  Sampler(const KernelTable& kernels, uint32_t vocabulary);

  // Chooses from `processed`, which is `raw` itself where nothing was changed. `index`: the token's place in the
  // generation. -infinity excludes a token; NaN, +infinity or nothing but -infinity is non_finite. Allocates
  // nothing.
  TokenProbability sample(std::span<const float> raw, std::span<const float> processed,
                          const SamplerOptions& options, uint64_t index);

  // The most likely tokens under the raw distribution of the last sample, best first (equal logits: lower ids first).
  std::span<const TokenProbability> alternatives() const noexcept { return alternatives_; }

 private:
  // Probabilities are whole numbers, 2^40 for the most likely token, so that sums do not depend on the order.
  struct Candidate {
    uint64_t mass;
    uint32_t key;  // orders like the logit
    uint32_t token;
  };

  // log p(token) = (logit - maximum) * scale - log_total
  struct Softmax {
    uint32_t best;
    float maximum, scale, log_total;
    float log_probability(float logit) const noexcept { return (logit - maximum) * scale - log_total; }
  };

  Softmax measure(std::span<const float> logits);
  uint32_t draw(std::span<const float> logits, const SamplerOptions& options, uint64_t index,
                Softmax& distribution);
  bool is_kept(uint32_t token) const noexcept;
  void find_alternatives(std::span<const float> raw, uint32_t count);
  template <class Weight>
  void keep_best(uint64_t target, Weight weight);

  const KernelTable& kernels_;
  std::vector<float> exponentials_;             // [vocabulary]
  std::vector<Candidate> candidates_;           // in the order of ids; capacity [vocabulary]
  std::vector<TokenProbability> alternatives_;  // capacity kMaxAlternatives
};

}  // namespace riftco
