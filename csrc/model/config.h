// The geometry of a model: what differs between families is data here.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "core/step_model.h"

namespace riftco {

enum class PositionKind : uint8_t { learned, rotary };

// How rotary frequencies are stretched for contexts longer than the one trained on (model/rotary.h has the formulas).
enum class RotaryScaling : uint8_t { none, linear, llama3, yarn, factors };

// Numbers are those of RT_BIAS_* (include/riftco/model.h).
enum Bias : uint32_t {
  kBiasQ = 1,
  kBiasK = 2,
  kBiasV = 4,
  kBiasO = 8,
  kBiasUp = 16,
  kBiasGate = 32,
  kBiasDown = 64,
  kBiasHead = 128,
  kBiasNorms = 256
};

struct ModelConfig {
  uint32_t vocabulary_size = 256;
  uint32_t maximum_context = 256;
  uint32_t layer_count = 4;
  uint32_t width = 128;
  uint32_t head_count = 4;
  uint32_t kv_head_count = 4;
  uint32_t head_width = 32;
  uint32_t mlp_width = 512;
  PositionKind position = PositionKind::learned;
  NormKind norm = NormKind::layer;
  Activation activation = Activation::gelu_erf;
  uint32_t biases = kBiasQ | kBiasK | kBiasV | kBiasO | kBiasUp | kBiasDown | kBiasHead | kBiasNorms;
  bool tied_head = false;
  uint32_t rotary_width = 0;  // rotated dims of a head
  double rotary_base = 10000.0;
  double norm_epsilon = 1e-5;
  RotaryScaling rotary_scaling = RotaryScaling::none;  // factors: a parameter, one number for each pair
  uint32_t rotary_original_context = 0;                // llama3, yarn: positions before stretching
  double rotary_factor = 1.0;                          // linear, llama3, yarn
  double rotary_slow_rotations = 0;  // llama3, yarn: pairs that turn less often over the original context are
  double rotary_fast_rotations = 0;  // stretched, those that turn more often are not, those between in part
  double rotary_attention_factor = 1.0;  // yarn: of cosines and sines
  uint32_t sliding_window = 0;           // keys that a token sees, its own included; 0: all
  uint32_t first_window_layer = 0;       // layers before it see all keys
  bool qk_norm = false;                  // rms norm of every head of q and k

  bool operator==(const ModelConfig&) const = default;
};

// Fails with `status`, naming `source`, field and value, when the geometry is not one that can be computed (zero or huge
// sizes, heads that do not divide, odd rotary width, ...).
void validate(const ModelConfig& config, Status status, const std::string& source);

uint64_t parameter_count(const ModelConfig& config);

// The JSON text of a .rift file's config; deterministic. from_json fails with corrupt_data naming field and value.
std::string config_to_json(const ModelConfig& config);
ModelConfig config_from_json(std::string_view json, const std::string& source);

}  // namespace riftco
