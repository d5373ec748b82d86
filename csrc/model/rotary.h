// The angles of rotary positions.
#pragma once
#include <span>
#include <vector>

#include "model/config.h"

namespace riftco {

// Of each rotated pair, in radians per position: f = base^(-2 i / rotary_width), then by the config's scaling
//   linear   f / factor
//   factors  f / factors[i]
//   llama3   s f + (1 - s) f / factor, s rising from 0 to 1 as the rotations over the original context,
//            original_context * f / 2 pi, go from slow to fast (Llama 3.1)
//   yarn     the same with s falling from 1 to 0 between the pairs that turn `fast` and `slow` times over the original
//            context (Peng et al. 2023, arXiv:2309.00071)
// `factors` has one number for each pair with RotaryScaling::factors and is not read otherwise.
std::vector<double> rotary_frequencies(const ModelConfig& config, std::span<const float> factors);

}  // namespace riftco
