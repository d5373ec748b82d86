// Normal random numbers from a seed alone, the same on every machine.
#pragma once
#include <cmath>

#include "base/random.h"
#include "core/math.h"

namespace riftco {

// Element i of stream `stream`, of mean 0, by Box and Muller (1958) from two uniform numbers in (0, 1).
inline float normal(uint64_t seed, uint64_t stream, uint64_t i, double deviation) {
  const std::array<uint32_t, 4> bits = philox(seed, i, stream);
  auto uniform = [](uint32_t high, uint32_t low) {
    return (double(uint64_t(high) << 21 | low >> 11) + 0.5) * 0x1p-53;
  };
  const double radius = std::sqrt(-2.0 * math::log(uniform(bits[0], bits[1])));
  double sine, cosine;
  math::sin_cos(6.283185307179586 * uniform(bits[2], bits[3]), &sine, &cosine);
  return float(deviation * radius * cosine);
}

}  // namespace riftco
