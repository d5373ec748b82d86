#include "model/importers/hugging_face_config.h"

#include "base/error.h"

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
  uint32_t u32(const char* name) const {
    if (!has(name)) fail(Status::corrupt_data, "%s: there is no %s", source_.c_str(), name);
    const json& value = object_[name];
    if (!value.is_number_unsigned() || value.get<uint64_t>() > UINT32_MAX) bad(name, "a size");
    return uint32_t(value.get<uint64_t>());
  }
  uint32_t u32(const char* name, uint32_t otherwise) const { return has(name) ? u32(name) : otherwise; }
  double number(const char* name, double otherwise) const {
    if (!has(name)) return otherwise;
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

// transformers 5 writes rope_parameters, 4 wrote rope_theta and rope_scaling.
double rotary_base(const Fields& f) {
  double base = f.number("rope_theta", 10000.0);
  if (f.has("rope_scaling")) {
    const Fields scaling = f.object("rope_scaling");
    if (scaling.text("rope_type", scaling.text("type", "default").c_str()) != "default")
      f.refuse("rope_scaling");
  }
  if (f.has("rope_parameters")) {
    const Fields rope = f.object("rope_parameters");
    if (rope.text("rope_type", "default") != "default") f.refuse("rope_parameters");
    if (rope.number("partial_rotary_factor", 1.0) != 1.0) f.refuse("rope_parameters");
    base = rope.number("rope_theta", base);
  }
  return base;
}

ModelConfig llama(const Fields& f, const std::string& source) {
  ModelConfig c;
  c.vocabulary_size = f.u32("vocab_size");
  c.maximum_context = f.u32("max_position_embeddings");
  c.layer_count = f.u32("num_hidden_layers");
  c.width = f.u32("hidden_size");
  c.mlp_width = f.u32("intermediate_size");
  c.head_count = f.u32("num_attention_heads");
  c.kv_head_count = f.u32("num_key_value_heads", c.head_count);
  if (c.head_count == 0) fail(Status::corrupt_data, "%s: num_attention_heads is 0", source.c_str());
  if (!f.has("head_dim") && c.width % c.head_count != 0)
    fail(Status::corrupt_data, "%s: num_attention_heads %u does not divide hidden_size %u", source.c_str(),
         c.head_count, c.width);
  c.head_width = f.u32("head_dim", c.width / c.head_count);
  c.position = PositionKind::rotary;
  c.rotary_width = c.head_width;
  if (f.number("partial_rotary_factor", 1.0) != 1.0) f.refuse("partial_rotary_factor");
  c.rotary_base = rotary_base(f);
  c.norm = NormKind::rms;
  c.norm_epsilon = f.number("rms_norm_eps", 1e-6);
  if (f.text("hidden_act", "silu") != "silu") f.refuse("hidden_act");
  c.activation = Activation::silu_gated;
  c.biases = 0;
  if (f.boolean("attention_bias", false)) c.biases |= kBiasQ | kBiasK | kBiasV | kBiasO;
  if (f.boolean("mlp_bias", false)) c.biases |= kBiasGate | kBiasUp | kBiasDown;
  if (f.has("sliding_window")) f.refuse("sliding_window");
  c.tied_head = f.boolean("tie_word_embeddings", false);
  return c;
}

}  // namespace

HuggingFaceFamily hugging_face_family(const json& config, const std::string& source) {
  if (!config.is_object()) fail(Status::corrupt_data, "%s: not a JSON object", source.c_str());
  const Fields fields(config, source);
  const std::string type = fields.text("model_type", "");
  if (fields.has("quantization_config")) fields.refuse("quantization_config");
  if (type == "gpt2") return HuggingFaceFamily::gpt2;
  if (type == "llama") return HuggingFaceFamily::llama;
  fail(Status::unsupported, "%s: model_type %s is not supported (gpt2 and llama are)", source.c_str(),
       quoted(type).c_str());
}

ModelConfig hugging_face_config(HuggingFaceFamily family, const json& config, const std::string& source) {
  const Fields fields(config, source);
  const ModelConfig c = family == HuggingFaceFamily::gpt2 ? gpt2(fields, source) : llama(fields, source);
  validate(c, Status::corrupt_data, source);
  return c;
}

}  // namespace riftco
