#include "model/rotary.h"

#include <algorithm>
#include <cmath>

#include "core/math.h"

namespace riftco {
namespace {

constexpr double kTurn = 6.283185307179586;

// Pairs [low, high] over which yarn goes from unstretched to stretched; a pair's index grows as its frequency falls.
struct Ramp {
  double low, high;

  double unstretched(uint32_t pair) const { return 1 - std::clamp((pair - low) / (high - low), 0.0, 1.0); }
};

Ramp yarn_ramp(const ModelConfig& c) {
  auto pair_that_turns = [&](double times) {
    return c.rotary_width * math::log(c.rotary_original_context / (times * kTurn)) /
           (2 * math::log(c.rotary_base));
  };
  Ramp ramp = {std::max(std::floor(pair_that_turns(c.rotary_fast_rotations)), 0.0),
               std::min(std::ceil(pair_that_turns(c.rotary_slow_rotations)), c.rotary_width - 1.0)};
  if (ramp.low == ramp.high) ramp.high += 0.001;
  return ramp;
}

}  // namespace

std::vector<double> rotary_frequencies(const ModelConfig& c, std::span<const float> factors) {
  std::vector<double> frequencies(c.rotary_width / 2);
  const Ramp ramp = c.rotary_scaling == RotaryScaling::yarn ? yarn_ramp(c) : Ramp{};
  for (uint32_t i = 0; i < frequencies.size(); i++) {
    const double f = math::pow(c.rotary_base, -2.0 * i / c.rotary_width);
    double share = 0, divisor = c.rotary_factor;  // of the frequency that is not divided
    if (c.rotary_scaling == RotaryScaling::yarn) share = ramp.unstretched(i);
    if (c.rotary_scaling == RotaryScaling::llama3)
      share = std::clamp((c.rotary_original_context * f / kTurn - c.rotary_slow_rotations) /
                             (c.rotary_fast_rotations - c.rotary_slow_rotations),
                         0.0, 1.0);
    if (c.rotary_scaling == RotaryScaling::factors) divisor = double(factors[i]);
    frequencies[i] = share * f + (1 - share) * f / divisor;
  }
  return frequencies;
}

}  // namespace riftco
