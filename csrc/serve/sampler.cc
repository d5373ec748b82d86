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
  return bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u);
}

// The first of the largest logits. Refuses rows without a distribution.
uint32_t most_likely(std::span<const float> logits) {
  uint32_t best = 0;
  for (uint32_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] <= std::numeric_limits<float>::max()))
      fail(Status::non_finite, "the logit of token %u is %g", i, double(logits[i]));
    if (logits[i] > logits[best]) best = i;
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
}

Sampler::Sampler(const KernelTable& kernels, uint32_t vocabulary)
    : kernels_(kernels), exponentials_(vocabulary) {
  candidates_.reserve(vocabulary);
}

SampledToken Sampler::sample(std::span<const float> logits, const SamplerOptions& options, uint64_t index) {
  uint32_t token = most_likely(logits);
  const float maximum = logits[token];
  const float total = kernels_.exp_row(logits.data(), logits.size(), maximum, 1.0f, exponentials_.data());
  if (options.temperature > 0) token = draw(logits, maximum, options, index);
  return {token, (logits[token] - maximum) - math::log(total)};
}

uint32_t Sampler::draw(std::span<const float> logits, float maximum, const SamplerOptions& options,
                       uint64_t index) {
  const float scale =
      std::min(1.0f / options.temperature, std::numeric_limits<float>::max());  // 0 * infinity is NaN
  if (scale != 1.0f) kernels_.exp_row(logits.data(), logits.size(), maximum, scale, exponentials_.data());
  candidates_.resize(logits.size());
  for (uint32_t i = 0; i < logits.size(); ++i)
    candidates_[i] = {uint64_t(exponentials_[i] * kMassOfBest), order_key(logits[i]), i};

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

  uint64_t rest = multiply_high(random_bits(options.seed, index), sum());
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
