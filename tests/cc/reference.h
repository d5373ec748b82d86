// The kernels as plain loops over logical layouts: the bitwise oracle of csrc/core/kernels.h.
#pragma once
#include <cstdint>
#include <vector>

#include "core/kernels.h"

namespace riftco::reference {

using Floats = std::vector<float>;

// A row of activations as int8 blocks of 32.
struct Block {
  int8_t q[32];
  float scale;
  int32_t sum;
};
Block quantise(const float* x);

// One output without its bias: row `weights` (file layout) times x [inputs].
float dot(DType type, const std::byte* weights, const float* x, uint32_t inputs);

Floats norm(NormKind kind, float epsilon, const Floats& x, const Floats& weight, const float* bias);
float activate(Activation kind, float gate, float up);

// Scaled cosines, then sines, of one position.
Floats rotary(const std::vector<double>& inverse_frequencies, uint32_t position, double scale = 1);
// One head in place; cos_sin as from rotary().
void rotate(float* x, const Floats& cos_sin);

// What a cache of this element type keeps of a value.
float rounded(DType element, float x);

// One query head over the newest `window` of keys and values [count][head_width].
Floats attention(const float* q, const float* keys, const float* values, uint32_t count, uint32_t window,
                 uint32_t head_width, float scale);

float exp_row(const Floats& x, float shift, float scale, Floats* out);

}  // namespace riftco::reference
