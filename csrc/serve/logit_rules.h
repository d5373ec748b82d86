// What changes a row of logits before a token is chosen: bias, barred tokens, penalties for repeating.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace riftco {

struct LogitBias {
  uint32_t token;
  float bias;  // minus infinity bars the token
};

// Rules apply in the order of the fields; barred tokens come after the bias.
struct LogitRules {
  std::vector<LogitBias> bias = {};  // added; a token that is there twice gets both
  // Tokens of the window of prompt and new tokens: a logit above 0 is divided by it, another one multiplied.
  float repetition_penalty = 1;
  float frequency_penalty = 0;  // taken off for every time that a new token is in the window
  float presence_penalty = 0;   // taken off once
  uint32_t penalty_window = 0;  // newest tokens that the penalties look at; 0: all
};

// Fails with invalid_argument or out_of_range, naming field and value.
void validate(const LogitRules& rules, uint32_t vocabulary);

class LogitProcessor {
 public:
  explicit LogitProcessor(uint32_t vocabulary) : row_(vocabulary), counts_(vocabulary) {}

  // `raw` after the rules: itself where they change nothing, else a row that is valid until the next call. `history`:
  // the prompt's tokens, then the new ones from first_new on. `barred` get minus infinity. Allocates nothing.
  std::span<const float> apply(const LogitRules& rules, std::span<const uint32_t> barred,
                               std::span<const float> raw, std::span<const uint32_t> history,
                               size_t first_new);

 private:
  void penalise(const LogitRules& rules, std::span<const uint32_t> window, std::span<const uint32_t> recent);

  std::vector<float> row_;
  std::vector<uint32_t> counts_;  // all zero between calls
};

}  // namespace riftco
