#include "serve/logit_rules.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace riftco {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void require_finite(float value, const char* name) {
  if (!(value > -kInfinity && value < kInfinity))
    fail(Status::invalid_argument, "%s %g is not finite", name, double(value));
}

}  // namespace

void validate(const LogitRules& rules, uint32_t vocabulary) {
  for (const auto& [token, bias] : rules.bias) {
    if (token >= vocabulary)
      fail(Status::out_of_range, "token %u of the logit bias is not below the vocabulary size %u", token,
           vocabulary);
    if (!(bias < kInfinity))
      fail(Status::invalid_argument, "the logit bias of token %u is %g", token, double(bias));
  }
  if (!(rules.repetition_penalty > 0 && rules.repetition_penalty < kInfinity))
    fail(Status::invalid_argument, "repetition_penalty %g is not a number above 0",
         double(rules.repetition_penalty));
  require_finite(rules.frequency_penalty, "frequency_penalty");
  require_finite(rules.presence_penalty, "presence_penalty");
}

std::span<const float> LogitProcessor::apply(const LogitRules& rules, std::span<const uint32_t> barred,
                                             std::span<const float> raw, std::span<const uint32_t> history,
                                             size_t first_new) {
  const bool penalties =
      rules.repetition_penalty != 1 || rules.frequency_penalty != 0 || rules.presence_penalty != 0;
  if (rules.bias.empty() && barred.empty() && !penalties) return raw;
  std::copy(raw.begin(), raw.end(), row_.begin());
  for (const auto& [token, bias] : rules.bias) row_[token] += bias;
  for (uint32_t token : barred) row_[token] = -kInfinity;
  if (penalties) {
    const size_t seen =
        rules.penalty_window ? std::min<size_t>(rules.penalty_window, history.size()) : history.size();
    penalise(rules, history.last(seen), history.last(std::min(seen, history.size() - first_new)));
  }
  return row_;
}

void LogitProcessor::penalise(const LogitRules& rules, std::span<const uint32_t> window,
                              std::span<const uint32_t> recent) {
  for (uint32_t token : window) {
    if (counts_[token]++ > 0) continue;
    float& logit = row_[token];
    logit = logit > 0 ? logit / rules.repetition_penalty : logit * rules.repetition_penalty;
  }
  for (uint32_t token : window) counts_[token] = 0;
  for (uint32_t token : recent) counts_[token]++;
  for (uint32_t token : recent) {
    if (counts_[token] == 0) continue;
    row_[token] -= rules.frequency_penalty * float(counts_[token]) + rules.presence_penalty;
    counts_[token] = 0;
  }
}

}  // namespace riftco
