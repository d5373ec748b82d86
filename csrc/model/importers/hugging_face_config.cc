#include "model/importers/hugging_face_config.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "core/math.h"

namespace riftco {
namespace {

using nlohmann::json;

class Fields {
 public:
  Fields(const json& object, const std::string& source) : object_(object), source_(source) {}

  bool has(const char* name) const {
    const auto it = object_.find(name);
    return it != object_.end() && !it->is_null();
  }
  bool is_null(const char* name) const {
    const auto it = object_.find(name);
    return it != object_.end() && it->is_null();
  }
  uint32_t u32(const char* name) const {
    if (!has(name)) fail(Status::corrupt_data, "%s: there is no %s", source_.c_str(), name);
    const json& value = object_[name];
    if (!value.is_number_unsigned() || value.get<uint64_t>() > UINT32_MAX) bad(name, "a size");
    return uint32_t(value.get<uint64_t>());
  }
  uint32_t u32(const char* name, uint32_t otherwise) const { return has(name) ? u32(name) : otherwise; }
  double number(const char* name, double otherwise) const { return has(name) ? number(name) : otherwise; }
  double number(const char* name) const {
    if (!has(name)) fail(Status::corrupt_data, "%s: there is no %s", source_.c_str(), name);
    if (!object_[name].is_number()) bad(name, "a number");
    return object_[name].get<double>();
  }
  bool boolean(const char* name, bool otherwise) const {
    if (!has(name)) return otherwise;
    if (!object_[name].is_boolean()) bad(name, "true or false");
    return object_[name].get<bool>();
  }
  std::string text(const char* name, const char* otherwise) const {
    if (!has(name)) return otherwise;
    if (!object_[name].is_string()) bad(name, "a string");
    return object_[name].get<std::string>();
  }
  std::vector<std::string> texts(const char* name) const {
    std::vector<std::string> values;
    if (!object_[name].is_array()) bad(name, "an array");
    for (const json& value : object_[name]) {
      if (!value.is_string()) bad(name, "an array of strings");
      values.push_back(value.get<std::string>());
    }
    return values;
  }
  bool is_empty() const { return object_.empty(); }
  bool holds_objects() const {
    for (const json& value : object_)
      if (value.is_object()) return true;
    return false;
  }
  Fields object(const char* name) const {
    if (!object_[name].is_object()) bad(name, "an object");
    return Fields(object_[name], source_ + ": " + name);
  }
  [[noreturn]] void refuse(const char* name) const {
    fail(Status::unsupported, "%s: %s = %s is not supported", source_.c_str(), name, shown(name).c_str());
  }

 private:
  std::string shown(const char* name) const {
    return quoted(object_[name].dump(-1, ' ', true, json::error_handler_t::replace));
  }
  [[noreturn]] void bad(const char* name, const char* wanted) const {
    fail(Status::corrupt_data, "%s: %s is %s, not %s", source_.c_str(), name, shown(name).c_str(), wanted);
  }
  const json& object_;
  std::string source_;
};

ModelConfig gpt2(const Fields& f, const std::string& source) {
  ModelConfig c;
  c.vocabulary_size = f.u32("vocab_size");
  c.maximum_context = f.u32("n_positions");
  c.layer_count = f.u32("n_layer");
  c.width = f.u32("n_embd");
  c.head_count = c.kv_head_count = f.u32("n_head");
  if (c.head_count == 0 || c.width % c.head_count != 0)
    fail(Status::corrupt_data, "%s: n_head %u does not divide n_embd %u", source.c_str(), c.head_count,
         c.width);
  c.head_width = c.width / c.head_count;
  if (!f.has("n_inner") && c.width > UINT32_MAX / 4)
    fail(Status::corrupt_data, "%s: n_embd is %u", source.c_str(), c.width);
  c.mlp_width = f.has("n_inner") ? f.u32("n_inner") : 4 * c.width;
  c.norm_epsilon = f.number("layer_norm_epsilon", 1e-5);
  const std::string activation = f.text("activation_function", "gelu_new");
  if (activation == "gelu") {
    c.activation = Activation::gelu_erf;
  } else if (activation == "gelu_new" || activation == "gelu_pytorch_tanh") {
    c.activation = Activation::gelu_tanh;
  } else {
    f.refuse("activation_function");
  }
  if (!f.boolean("scale_attn_weights", true)) f.refuse("scale_attn_weights");
  if (f.boolean("scale_attn_by_inverse_layer_idx", false)) f.refuse("scale_attn_by_inverse_layer_idx");
  if (f.boolean("add_cross_attention", false)) f.refuse("add_cross_attention");
  c.biases &= ~uint32_t(kBiasHead);
  c.tied_head = f.boolean("tie_word_embeddings", true);
  return c;
}

// The factor of cosines and sines that yarn's authors suggest.
double yarn_attention(const Fields& rope, double factor) {
  auto scale = [factor](double by) { return factor > 1 ? 0.1 * by * math::log(factor) + 1 : 1.0; };
  const double one = rope.number("mscale", 0), all = rope.number("mscale_all_dim", 0);
  return rope.number("attention_factor", one != 0 && all != 0 ? scale(one) / scale(all) : scale(1));
}

void read_yarn(const Fields& rope, ModelConfig& c) {
  auto nonzero = [](double value, double otherwise) { return value != 0 ? value : otherwise; };
  c.rotary_factor =
      rope.number("factor", double(c.maximum_context) / std::max(c.rotary_original_context, 1u));
  c.rotary_fast_rotations = nonzero(rope.number("beta_fast", 0), 32);
  c.rotary_slow_rotations = nonzero(rope.number("beta_slow", 0), 1);
  c.rotary_attention_factor = yarn_attention(rope, c.rotary_factor);
  if (!rope.boolean("truncate", true)) rope.refuse("truncate");
}

// transformers 5 writes rope_parameters, 4 wrote rope_theta and rope_scaling; it takes the latter where both are there.
void read_rotary(const Fields& f, ModelConfig& c) {
  c.rotary_base = f.number("rope_theta", 10000.0);
  const bool old = f.has("rope_scaling") && !f.object("rope_scaling").is_empty();
  const char* const name = old ? "rope_scaling" : "rope_parameters";
  if (!f.has(name)) return;
  const Fields rope = f.object(name);
  c.rotary_base = rope.number("rope_theta", c.rotary_base);
  if (rope.holds_objects() || rope.number("partial_rotary_factor", 1.0) != 1.0) f.refuse(name);
  const std::string type = rope.text("rope_type", rope.text("type", "default").c_str());
  if (type == "default") return;
  if (type == "linear") {
    c.rotary_scaling = RotaryScaling::linear;
    c.rotary_factor = rope.number("factor");
    return;
  }
  if (type != "llama3" && type != "yarn") rope.refuse(rope.has("rope_type") ? "rope_type" : "type");
  c.rotary_original_context = f.u32("original_max_position_embeddings",
                                    rope.u32("original_max_position_embeddings", c.maximum_context));
  if (type == "yarn") {
    c.rotary_scaling = RotaryScaling::yarn;
    read_yarn(rope, c);
  } else {
    c.rotary_scaling = RotaryScaling::llama3;
    c.rotary_factor = rope.number("factor");
    c.rotary_slow_rotations = rope.number("low_freq_factor");
    c.rotary_fast_rotations = rope.number("high_freq_factor");
  }
}

// Which layers see how many keys. What is absent is transformers' default.
void read_window(HuggingFaceFamily family, const Fields& f, ModelConfig& c) {
  if (family == HuggingFaceFamily::llama) {
    if (f.has("sliding_window")) f.refuse("sliding_window");
    return;
  }
  const bool is_mistral = family == HuggingFaceFamily::mistral;
  const bool on = is_mistral || f.boolean("use_sliding_window", false);
  const uint32_t window = !on || f.is_null("sliding_window") ? 0 : f.u32("sliding_window", 4096);
  if (window == 0 && on && f.has("sliding_window")) f.refuse("sliding_window");
  uint32_t first = window == 0 ? c.layer_count : is_mistral ? 0 : f.u32("max_window_layers", 28);
  if (f.has("layer_types")) {
    const std::vector<std::string> types = f.texts("layer_types");
    first = uint32_t(std::find(types.begin(), types.end(), "sliding_attention") - types.begin());
    const bool plain = types.size() == c.layer_count &&
                       std::all_of(types.begin(), types.begin() + first,
                                   [](const std::string& t) { return t == "full_attention"; }) &&
                       std::all_of(types.begin() + first, types.end(),
                                   [](const std::string& t) { return t == "sliding_attention"; });
    if (!plain || is_mistral || (window == 0 && first < c.layer_count)) f.refuse("layer_types");
  }
  if (first >= c.layer_count) return;
  c.sliding_window = window;
  c.first_window_layer = first;
}

ModelConfig llama(HuggingFaceFamily family, const Fields& f, const std::string& source) {
  ModelConfig c;
  c.vocabulary_size = f.u32("vocab_size");
  c.maximum_context = f.u32("max_position_embeddings");
  c.layer_count = f.u32("num_hidden_layers");
  c.width = f.u32("hidden_size");
  c.mlp_width = f.u32("intermediate_size");
  c.head_count = f.u32("num_attention_heads");
  c.kv_head_count = family == HuggingFaceFamily::llama || f.is_null("num_key_value_heads")
                        ? f.u32("num_key_value_heads", c.head_count)
                        : f.u32("num_key_value_heads");
  if (c.head_count == 0) fail(Status::corrupt_data, "%s: num_attention_heads is 0", source.c_str());
  const bool is_qwen3 = family == HuggingFaceFamily::qwen3;
  if (!f.has("head_dim") && !is_qwen3 && c.width % c.head_count != 0)
    fail(Status::corrupt_data, "%s: num_attention_heads %u does not divide hidden_size %u", source.c_str(),
         c.head_count, c.width);
  c.head_width = f.u32("head_dim", is_qwen3 ? 128 : c.width / c.head_count);
  c.position = PositionKind::rotary;
  c.rotary_width = c.head_width;
  if (f.number("partial_rotary_factor", 1.0) != 1.0) f.refuse("partial_rotary_factor");
  read_rotary(f, c);
  c.norm = NormKind::rms;
  c.norm_epsilon = f.number("rms_norm_eps", 1e-6);
  if (f.text("hidden_act", "silu") != "silu") f.refuse("hidden_act");
  c.activation = Activation::silu_gated;
  c.biases = 0;
  c.qk_norm = is_qwen3;
  const bool is_llama = family == HuggingFaceFamily::llama;
  if (family == HuggingFaceFamily::qwen2) c.biases = kBiasQ | kBiasK | kBiasV;
  if ((is_llama || is_qwen3) && f.boolean("attention_bias", false))
    c.biases = kBiasQ | kBiasK | kBiasV | kBiasO;
  if (is_llama && f.boolean("mlp_bias", false)) c.biases |= kBiasGate | kBiasUp | kBiasDown;
  read_window(family, f, c);
  c.tied_head = f.boolean("tie_word_embeddings", false);
  return c;
}

}  // namespace

HuggingFaceFamily hugging_face_family(const json& config, const std::string& source) {
  if (!config.is_object()) fail(Status::corrupt_data, "%s: not a JSON object", source.c_str());
  const Fields fields(config, source);
  const std::string type = fields.text("model_type", "");
  if (fields.has("quantization_config")) fields.refuse("quantization_config");
  static constexpr std::pair<const char*, HuggingFaceFamily> kFamilies[] = {
      {"gpt2", HuggingFaceFamily::gpt2},
      {"llama", HuggingFaceFamily::llama},
      {"mistral", HuggingFaceFamily::mistral},
      {"qwen2", HuggingFaceFamily::qwen2},
      {"qwen3", HuggingFaceFamily::qwen3}};
  for (const auto& [name, family] : kFamilies)
    if (type == name) return family;
  fail(Status::unsupported, "%s: model_type %s is not supported (gpt2, llama, mistral, qwen2 and qwen3 are)",
       source.c_str(), quoted(type).c_str());
}

ModelConfig hugging_face_config(HuggingFaceFamily family, const json& config, const std::string& source) {
  const Fields fields(config, source);
  const ModelConfig c =
      family == HuggingFaceFamily::gpt2 ? gpt2(fields, source) : llama(family, fields, source);
  validate(c, Status::corrupt_data, source);
  return c;
}

}  // namespace riftco
