#include "model/config.h"

#include <array>
#include <cinttypes>
#include <set>

#include "base/json.h"
#include "model/weights.h"

namespace riftco {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Limits keep every product of two sizes within 64 bits and every element index of a row within 32.
constexpr uint32_t kLargest = 1u << 24;
constexpr uint32_t kMostLayers = 4096;
constexpr uint32_t kMostHeadWidth = 1024;

struct Field {
  const char* name;
  uint32_t ModelConfig::*value;
  uint32_t most;
};
constexpr std::array<Field, 8> kFields = {{{"vocabulary_size", &ModelConfig::vocabulary_size, kLargest},
                                           {"maximum_context", &ModelConfig::maximum_context, kLargest},
                                           {"layer_count", &ModelConfig::layer_count, kMostLayers},
                                           {"width", &ModelConfig::width, kLargest},
                                           {"head_count", &ModelConfig::head_count, kLargest},
                                           {"kv_head_count", &ModelConfig::kv_head_count, kLargest},
                                           {"head_width", &ModelConfig::head_width, kMostHeadWidth},
                                           {"mlp_width", &ModelConfig::mlp_width, kLargest}}};

constexpr std::array kPositionNames = {"learned", "rotary"};
constexpr std::array kNormNames = {"layer", "rms"};
constexpr std::array kScalingNames = {"none", "linear", "llama3", "yarn", "factors"};
constexpr std::array kActivationNames = {"gelu_erf", "gelu_tanh", "silu_gated"};

template <size_t N>
uint8_t number_of(const std::array<const char*, N>& names, const std::string& name, const char* field,
                  const std::string& source) {
  for (size_t i = 0; i < N; i++)
    if (name == names[i]) return uint8_t(i);
  fail(Status::corrupt_data, "%s: %s is %s, which is not known", source.c_str(), field, quoted(name).c_str());
}

class Reader {
 public:
  Reader(const json& object, const std::string& source) : object_(object), source_(source) {}
  bool has(const char* name) const { return object_.contains(name); }
  uint32_t u32(const char* name) const {
    const json& value = get(name);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > UINT32_MAX) refuse(name, value);
    return uint32_t(value.get<uint64_t>());
  }
  double number(const char* name) const {
    const json& value = get(name);
    if (!value.is_number()) refuse(name, value);
    return value.get<double>();
  }
  bool boolean(const char* name) const {
    const json& value = get(name);
    if (!value.is_boolean()) refuse(name, value);
    return value.get<bool>();
  }
  std::string text(const char* name) const {
    const json& value = get(name);
    if (!value.is_string()) refuse(name, value);
    return value.get<std::string>();
  }
  // What a later release has added changes the computation.
  void refuse_unread() const {
    for (const auto& [name, value] : object_.items())
      if (!read_.contains(name))
        fail(Status::unsupported, "%s: the config's %s is not known", source_.c_str(), quoted(name).c_str());
  }

 private:
  const json& get(const char* name) const {
    const auto it = object_.find(name);
    if (it == object_.end()) fail(Status::corrupt_data, "%s: the config has no %s", source_.c_str(), name);
    read_.insert(name);
    return *it;
  }
  [[noreturn]] void refuse(const char* name, const json& value) const {
    fail(Status::corrupt_data, "%s: the config's %s is %s", source_.c_str(), name,
         quoted(value.dump()).c_str());
  }
  const json& object_;
  const std::string& source_;
  mutable std::set<std::string> read_;
};

void validate_scaling(const ModelConfig& c, Status status, const char* from) {
  if (size_t(c.rotary_scaling) >= kScalingNames.size())
    fail(status, "%s: rotary_scaling %d is not known", from, int(c.rotary_scaling));
  const bool yarn = c.rotary_scaling == RotaryScaling::yarn,
             blended = yarn || c.rotary_scaling == RotaryScaling::llama3,
             stretched = blended || c.rotary_scaling == RotaryScaling::linear;
  const char* const name = kScalingNames[size_t(c.rotary_scaling)];
  if (c.position != PositionKind::rotary && c.rotary_scaling != RotaryScaling::none)
    fail(status, "%s: rotary_scaling is %s with learned positions", from, name);
  constexpr double kMost = 1e6;
  auto check = [&](bool fits, const char* field, double value) {
    if (!fits) fail(status, "%s: %s %g does not fit rotary_scaling %s", from, field, value, name);
  };
  check(stretched ? c.rotary_factor > 0 && c.rotary_factor <= kMost : c.rotary_factor == 1, "rotary_factor",
        c.rotary_factor);
  check(blended ? c.rotary_original_context > 0 && c.rotary_original_context <= kLargest
                : c.rotary_original_context == 0,
        "rotary_original_context", c.rotary_original_context);
  check(blended ? c.rotary_slow_rotations > 0 : c.rotary_slow_rotations == 0, "rotary_slow_rotations",
        c.rotary_slow_rotations);
  check(blended ? c.rotary_fast_rotations > c.rotary_slow_rotations && c.rotary_fast_rotations <= kMost
                : c.rotary_fast_rotations == 0,
        "rotary_fast_rotations", c.rotary_fast_rotations);
  check(yarn ? c.rotary_attention_factor > 0 && c.rotary_attention_factor <= kMost
             : c.rotary_attention_factor == 1,
        "rotary_attention_factor", c.rotary_attention_factor);
  if (yarn) check(c.rotary_base > 1, "rotary_base", c.rotary_base);
}

}  // namespace

void validate(const ModelConfig& c, Status status, const std::string& source) {
  const char* const from = source.c_str();
  for (const Field& field : kFields) {
    const uint32_t value = c.*field.value;
    if (value == 0 || value > field.most)
      fail(status, "%s: %s is %u, not in 1 .. %u", from, field.name, value, field.most);
  }
  if (c.head_count % c.kv_head_count != 0)
    fail(status, "%s: kv_head_count %u does not divide head_count %u", from, c.kv_head_count, c.head_count);
  if (uint64_t(c.head_count) * c.head_width > kLargest)
    fail(status, "%s: head_count %u times head_width %u exceeds %u", from, c.head_count, c.head_width,
         kLargest);
  if (size_t(c.position) >= kPositionNames.size())
    fail(status, "%s: position %d is not known", from, int(c.position));
  if (size_t(c.norm) >= kNormNames.size()) fail(status, "%s: norm %d is not known", from, int(c.norm));
  if (size_t(c.activation) >= kActivationNames.size())
    fail(status, "%s: activation %d is not known", from, int(c.activation));
  if (c.position == PositionKind::rotary) {
    if (c.rotary_width == 0 || c.rotary_width % 2 != 0 || c.rotary_width > c.head_width)
      fail(status, "%s: rotary_width %u is not an even number in 2 .. head_width %u", from, c.rotary_width,
           c.head_width);
    if (!(c.rotary_base >= 1.0 && c.rotary_base <= 1e12))
      fail(status, "%s: rotary_base %g is not in 1 .. 1e12", from, c.rotary_base);
  } else if (c.rotary_width != 0) {
    fail(status, "%s: rotary_width is %u with learned positions", from, c.rotary_width);
  }
  if (!(c.norm_epsilon >= 0 && c.norm_epsilon <= 1))
    fail(status, "%s: norm_epsilon %g is not in 0 .. 1", from, c.norm_epsilon);
  if (c.biases >= 2 * kBiasNorms) fail(status, "%s: biases %#x names unknown projections", from, c.biases);
  if ((c.biases & kBiasGate) && c.activation != Activation::silu_gated)
    fail(status, "%s: biases %#x names the gate of a model without one", from, c.biases);
  validate_scaling(c, status, from);
  if (c.sliding_window > kLargest)
    fail(status, "%s: sliding_window %u exceeds %u", from, c.sliding_window, kLargest);
  if (c.first_window_layer >= (c.sliding_window ? c.layer_count : 1))
    fail(status, "%s: first_window_layer is %u with a sliding_window of %u and %u layers", from,
         c.first_window_layer, c.sliding_window, c.layer_count);
}

uint64_t parameter_count(const ModelConfig& config) {
  uint64_t count = 0;
  for (const ParameterInfo& p : parameter_list(config, DType::f32)) count += uint64_t(p.rows) * p.columns;
  return count;
}

std::string config_to_json(const ModelConfig& c) {
  ordered_json out = ordered_json::object();  // a null value that becomes one is not safe without memory
  for (const Field& field : kFields) out[field.name] = c.*field.value;
  out["position"] = kPositionNames[size_t(c.position)];
  out["rotary_width"] = c.rotary_width;
  out["rotary_base"] = c.rotary_base;
  out["norm"] = kNormNames[size_t(c.norm)];
  out["norm_epsilon"] = c.norm_epsilon;
  out["activation"] = kActivationNames[size_t(c.activation)];
  out["biases"] = c.biases;
  out["tied_head"] = c.tied_head;
  if (c.rotary_scaling != RotaryScaling::none) {
    out["rotary_scaling"] = kScalingNames[size_t(c.rotary_scaling)];
    out["rotary_original_context"] = c.rotary_original_context;
    out["rotary_factor"] = c.rotary_factor;
    out["rotary_slow_rotations"] = c.rotary_slow_rotations;
    out["rotary_fast_rotations"] = c.rotary_fast_rotations;
    out["rotary_attention_factor"] = c.rotary_attention_factor;
  }
  if (c.sliding_window) {
    out["sliding_window"] = c.sliding_window;
    out["first_window_layer"] = c.first_window_layer;
  }
  if (c.qk_norm) out["qk_norm"] = true;
  return out.dump();
}

ModelConfig config_from_json(std::string_view text, const std::string& source) {
  const json object = parse_json(text, source + ": config");
  if (!object.is_object()) fail(Status::corrupt_data, "%s: the config is not a JSON object", source.c_str());
  const Reader reader(object, source);
  ModelConfig c;
  for (const Field& field : kFields) c.*field.value = reader.u32(field.name);
  c.position = PositionKind(number_of(kPositionNames, reader.text("position"), "position", source));
  c.rotary_width = reader.u32("rotary_width");
  c.rotary_base = reader.number("rotary_base");
  c.norm = NormKind(number_of(kNormNames, reader.text("norm"), "norm", source));
  c.norm_epsilon = reader.number("norm_epsilon");
  c.activation = Activation(number_of(kActivationNames, reader.text("activation"), "activation", source));
  c.biases = reader.u32("biases");
  c.tied_head = reader.boolean("tied_head");
  if (reader.has("rotary_scaling")) {
    c.rotary_scaling =
        RotaryScaling(number_of(kScalingNames, reader.text("rotary_scaling"), "rotary_scaling", source));
    c.rotary_original_context = reader.u32("rotary_original_context");
    c.rotary_factor = reader.number("rotary_factor");
    c.rotary_slow_rotations = reader.number("rotary_slow_rotations");
    c.rotary_fast_rotations = reader.number("rotary_fast_rotations");
    c.rotary_attention_factor = reader.number("rotary_attention_factor");
  }
  if (reader.has("sliding_window")) {
    c.sliding_window = reader.u32("sliding_window");
    c.first_window_layer = reader.u32("first_window_layer");
  }
  if (reader.has("qk_norm")) c.qk_norm = reader.boolean("qk_norm");
  reader.refuse_unread();
  validate(c, Status::corrupt_data, source);
  return c;
}

}  // namespace riftco
