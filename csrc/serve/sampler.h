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
};

// Fails with invalid_argument, naming field and value.
void validate(const SamplerOptions& options);

struct SampledToken {
  uint32_t token;
  float log_probability;  // under softmax of the row as it is: temperature 1, no filter
};

class Sampler {
 public:
  Sampler(const KernelTable& kernels, uint32_t vocabulary);

  // `index`: the token's place in the generation. -infinity excludes a token; NaN, +infinity or nothing but
  // -infinity is non_finite. Allocates nothing.
  SampledToken sample(std::span<const float> logits, const SamplerOptions& options, uint64_t index);

 private:
  // Probabilities are whole numbers, 2^40 for the most likely token, so that sums do not depend on the order.
  struct Candidate {
    uint64_t mass;
    uint32_t key;  // orders like the logit
    uint32_t token;
  };

  uint32_t draw(std::span<const float> logits, float maximum, const SamplerOptions& options, uint64_t index);
  template <class Weight>
  void keep_best(uint64_t target, Weight weight);

  const KernelTable& kernels_;
  std::vector<float> exponentials_;    // [vocabulary]
  std::vector<Candidate> candidates_;  // in the order of ids; capacity [vocabulary]
};

}  // namespace riftco
