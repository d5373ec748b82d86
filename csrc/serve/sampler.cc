#include "serve/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/random.h"
#include "core/math.h"

namespace riftco {
namespace {

constexpr float kMassOfBest = float(uint64_t(1) << 40);

// Orders like the float; the two zeros are equal.
uint32_t order_key(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);
  return bits ^ (uint32_t(int32_t(bits) >> 31) | 0x80000000u);  // no branch: signs are as good as random
}

// The first of the largest logits. Refuses rows without a distribution.
uint32_t most_likely(std::span<const float> logits) {
  uint32_t best = 0;
  float most = logits[0];
  for (uint32_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] <= std::numeric_limits<float>::max()))
      fail(Status::non_finite, "the logit of token %u is %g", i, double(logits[i]));
    if (logits[i] > most) most = logits[i], best = i;
  }
  if (logits[best] == -std::numeric_limits<float>::infinity())
    fail(Status::non_finite, "all %zu logits are minus infinity", logits.size());
  return best;
}

// floor(a * b / 2^64)
uint64_t multiply_high(uint64_t a, uint64_t b) noexcept {
  __extension__ using Wide = unsigned __int128;
  return uint64_t(Wide(a) * b >> 64);
}

// At least 1, so that something is kept.
uint64_t share_of(float share, uint64_t mass) noexcept {
  return std::clamp<uint64_t>(uint64_t(std::ceil(double(share) * double(mass))), 1, mass);
}

}  // namespace

void validate(const SamplerOptions& options) {
  if (!(options.temperature >= 0 && options.temperature <= std::numeric_limits<float>::max()))
    fail(Status::invalid_argument, "temperature %g is not a number of at least 0",
         double(options.temperature));
  if (!(options.top_p > 0 && options.top_p <= 1))
    fail(Status::invalid_argument, "top_p %g is not in (0, 1]", double(options.top_p));
  if (!(options.min_p >= 0 && options.min_p <= 1))
    fail(Status::invalid_argument, "min_p %g is not in [0, 1]", double(options.min_p));
  if (options.alternatives > kMaxAlternatives)
    fail(Status::out_of_range, "%u alternatives are more than %u", options.alternatives, kMaxAlternatives);
}

Sampler::Sampler(const KernelTable& kernels, uint32_t vocabulary)
    : kernels_(kernels), exponentials_(vocabulary) {
  candidates_.reserve(vocabulary);
  alternatives_.reserve(kMaxAlternatives);
}

Sampler::Softmax Sampler::measure(std::span<const float> logits) {
  const uint32_t best = most_likely(logits);
  const float maximum = logits[best];
  const float total = kernels_.exp_row(logits.data(), logits.size(), maximum, 1.0f, exponentials_.data());
  return {best, maximum, 1.0f, math::log(total)};
}

TokenProbability Sampler::sample(std::span<const float> raw, std::span<const float> processed,
                                 const SamplerOptions& options, uint64_t index) {
  const Softmax model = measure(raw);
  Softmax drawn = raw.data() == processed.data() ? model : measure(processed);
  const bool greedy = options.temperature == 0;
  const uint32_t token = greedy ? drawn.best : draw(processed, options, index, drawn);
  const auto describe = [&](uint32_t id) -> TokenProbability {
    const bool possible = greedy || is_kept(id);
    return {id, model.log_probability(raw[id]),
            possible ? drawn.log_probability(processed[id]) : -std::numeric_limits<float>::infinity()};
  };
  find_alternatives(raw, options.alternatives);
  for (TokenProbability& alternative : alternatives_) alternative = describe(alternative.token);
  return describe(token);
}

bool Sampler::is_kept(uint32_t token) const noexcept {
  const auto found = std::lower_bound(candidates_.begin(), candidates_.end(), token,
                                      [](const Candidate& c, uint32_t id) { return c.token < id; });
  return found != candidates_.end() && found->token == token;
}

// Insertion into a short sorted list; tokens of minus infinity are no alternatives.
void Sampler::find_alternatives(std::span<const float> raw, uint32_t count) {
  alternatives_.clear();
  if (count == 0) return;
  float least = -std::numeric_limits<float>::infinity();  // an alternative is above it
  for (uint32_t i = 0; i < raw.size(); ++i) {
    if (!(raw[i] > least)) continue;
    if (alternatives_.size() == count) alternatives_.pop_back();
    const auto at = std::upper_bound(alternatives_.begin(), alternatives_.end(), raw[i],
                                     [&](float logit, const auto& a) { return logit > raw[a.token]; });
    alternatives_.insert(at, {i, 0, 0});
    if (alternatives_.size() == count) least = raw[alternatives_.back().token];
  }
}

// One of the tokens that the filters keep, which are then the candidates; sets scale and total of its distribution.
uint32_t Sampler::draw(std::span<const float> logits, const SamplerOptions& options, uint64_t index,
                       Softmax& distribution) {
  const float maximum = distribution.maximum;
  const float scale =
      std::min(1.0f / options.temperature, std::numeric_limits<float>::max());  // 0 * infinity is NaN
  if (scale != 1.0f) kernels_.exp_row(logits.data(), logits.size(), maximum, scale, exponentials_.data());
  candidates_.resize(logits.size());
  for (uint32_t i = 0; i < logits.size(); ++i)
    candidates_[i] = {uint64_t(int64_t(exponentials_[i] * kMassOfBest)), order_key(logits[i]), i};

  const auto sum = [&] {
    uint64_t mass = 0;
    for (const Candidate& c : candidates_) mass += c.mass;
    return mass;
  };
  if (options.top_k > 0 && options.top_k < candidates_.size())
    keep_best(options.top_k, [](const Candidate&) { return uint64_t(1); });
  if (options.top_p < 1) keep_best(share_of(options.top_p, sum()), [](const Candidate& c) { return c.mass; });
  if (options.min_p > 0) {
    const uint64_t least = share_of(options.min_p, uint64_t(kMassOfBest));
    std::erase_if(candidates_, [&](const Candidate& c) { return c.mass < least; });
  }

  const uint64_t kept = sum();
  distribution.scale = scale;
  distribution.log_total = math::log(float(kept) / kMassOfBest);
  uint64_t rest = multiply_high(random_bits(options.seed, index, options.stream), kept);
  size_t i = 0;
  while (rest >= candidates_[i].mass) rest -= candidates_[i++].mass;
  return candidates_[i].token;
}

// Keeps the fewest best candidates (equal logits: lower ids first) whose weights add up to `target`, which is
// at least 1 and at most the sum of all weights. A radix selection: three rounds find the key of the last one
// kept.
template <class Weight>
void Sampler::keep_best(uint64_t target, Weight weight) {
  uint32_t last = 0, decided = 0;  // the key of the last one kept agrees with `last` in the bits `decided`
  uint64_t missing = target;
  for (const auto& [shift, bits] : {std::array{21, 11}, std::array{10, 11}, std::array{0, 10}}) {
    const uint32_t digits = (1u << bits) - 1;
    std::array<uint64_t, 2048> sums{};
    for (const Candidate& c : candidates_)
      if ((c.key & decided) == last) sums[c.key >> shift & digits] += weight(c);
    uint32_t digit = digits;
    while (sums[digit] < missing) missing -= sums[digit--];
    last |= digit << shift;
    decided |= digits << shift;
  }
  std::erase_if(candidates_, [&](const Candidate& c) {
    if (c.key != last) return c.key < last;
    if (missing == 0) return true;
    missing -= std::min(missing, weight(c));
    return false;
  });
}

}  // namespace riftco
