// Hugging Face folders of the model types gpt2, llama, mistral, qwen2 and qwen3, as transformers 4 and 5 read them.
#include <charconv>

#include "base/folder.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "model/exporters/exporters.h"
#include "model/exporters/output_tensor.h"
#include "model/importers/hugging_face_config.h"

namespace riftco {
namespace {

[[noreturn]] void refuse(const char* what) {
  fail(Status::unsupported, "a Hugging Face folder cannot hold this model: %s", what);
}

std::string number_text(double value) {
  char text[32];  // the shortest that reads back to the same value
  const std::string digits(text, std::to_chars(text, std::end(text), value).ptr);
  return digits.find_first_not_of("-0123456789") == std::string::npos ? digits + ".0" : digits;
}

// A JSON object of a few fields, written in order.
class Fields {
 public:
  void raw(const char* name, const std::string& json) {
    text_ += format("%s\n  \"%s\": ", text_.size() > 1 ? "," : "", name) + json;
  }
  void add(const char* name, const char* value) { raw(name, json_string(value)); }
  void add(const char* name, bool value) { raw(name, value ? "true" : "false"); }
  void add(const char* name, uint32_t value) { raw(name, std::to_string(value)); }
  void add(const char* name, double value) { raw(name, number_text(value)); }
  void add(const char* name, std::optional<uint32_t> value) {
    raw(name, value ? std::to_string(*value) : "null");
  }
  std::string text() const { return text_ + "\n}\n"; }

 private:
  std::string text_ = "{";
};

void add_gpt2(Fields& f, const ModelConfig& c) {
  constexpr uint32_t kBiases = kBiasQ | kBiasK | kBiasV | kBiasO | kBiasUp | kBiasDown | kBiasNorms;
  if (c.norm != NormKind::layer || c.activation == Activation::silu_gated)
    refuse("learned positions go with layer norms and gelu (gpt2)");
  if (c.biases != kBiases) refuse("gpt2 has biases at all projections but the head");
  if (c.kv_head_count != c.head_count || c.head_count * c.head_width != c.width)
    refuse("gpt2 has heads that make up its width, each with its own keys");
  f.add("n_positions", c.maximum_context);
  f.add("n_embd", c.width);
  f.add("n_layer", c.layer_count);
  f.add("n_head", c.head_count);
  f.add("n_inner", c.mlp_width);
  f.add("activation_function", c.activation == Activation::gelu_erf ? "gelu" : "gelu_new");
  f.add("layer_norm_epsilon", c.norm_epsilon);
}

HuggingFaceFamily family_of(const ModelConfig& c) {
  if (c.position == PositionKind::learned) return HuggingFaceFamily::gpt2;
  if (c.qk_norm) return HuggingFaceFamily::qwen3;
  if (c.biases == (kBiasQ | kBiasK | kBiasV)) return HuggingFaceFamily::qwen2;
  return c.sliding_window != 0 ? HuggingFaceFamily::mistral : HuggingFaceFamily::llama;
}

// Their names by HuggingFaceFamily.
constexpr struct {
  const char *type, *architecture;
} kFamilies[] = {{"gpt2", "GPT2LMHeadModel"},
                 {"llama", "LlamaForCausalLM"},
                 {"mistral", "MistralForCausalLM"},
                 {"qwen2", "Qwen2ForCausalLM"},
                 {"qwen3", "Qwen3ForCausalLM"}};

void add_scaling(Fields& f, const ModelConfig& c) {
  const auto number = [](double value) { return number_text(value); };
  const std::string context = std::to_string(c.rotary_original_context);
  switch (c.rotary_scaling) {
    case RotaryScaling::none:
      return;
    case RotaryScaling::factors:
      refuse("factors of rotary frequencies");
    case RotaryScaling::linear:
      return f.raw("rope_scaling", R"({"rope_type": "linear", "factor": )" + number(c.rotary_factor) + "}");
    case RotaryScaling::llama3:
      return f.raw("rope_scaling", R"({"rope_type": "llama3", "factor": )" + number(c.rotary_factor) +
                                       R"(, "low_freq_factor": )" + number(c.rotary_slow_rotations) +
                                       R"(, "high_freq_factor": )" + number(c.rotary_fast_rotations) +
                                       R"(, "original_max_position_embeddings": )" + context + "}");
    case RotaryScaling::yarn:
      return f.raw("rope_scaling", R"({"rope_type": "yarn", "factor": )" + number(c.rotary_factor) +
                                       R"(, "beta_fast": )" + number(c.rotary_fast_rotations) +
                                       R"(, "beta_slow": )" + number(c.rotary_slow_rotations) +
                                       R"(, "attention_factor": )" + number(c.rotary_attention_factor) +
                                       R"(, "original_max_position_embeddings": )" + context + "}");
  }
}

void add_llama(Fields& f, const ModelConfig& c, HuggingFaceFamily family) {
  if (c.norm != NormKind::rms || c.activation != Activation::silu_gated)
    refuse("rotary positions go with rms norms and silu_gated (llama)");
  f.add("max_position_embeddings", c.maximum_context);
  f.add("hidden_size", c.width);
  f.add("intermediate_size", c.mlp_width);
  f.add("num_hidden_layers", c.layer_count);
  f.add("num_attention_heads", c.head_count);
  f.add("num_key_value_heads", c.kv_head_count);
  f.add("head_dim", c.head_width);
  f.add("hidden_act", "silu");
  f.add("rms_norm_eps", c.norm_epsilon);
  f.add("rope_theta", c.rotary_base);
  add_scaling(f, c);
  const bool qwen = family == HuggingFaceFamily::qwen2 || family == HuggingFaceFamily::qwen3;
  if (family == HuggingFaceFamily::llama || family == HuggingFaceFamily::qwen3)
    f.add("attention_bias", (c.biases & kBiasQ) != 0);
  if (family == HuggingFaceFamily::llama) f.add("mlp_bias", (c.biases & kBiasGate) != 0);
  if (qwen) f.add("use_sliding_window", c.sliding_window != 0);
  if (qwen && c.sliding_window != 0) f.add("max_window_layers", c.first_window_layer);
  if (family == HuggingFaceFamily::mistral || (qwen && c.sliding_window != 0))
    f.add("sliding_window", c.sliding_window);
}

std::string config_json(const DecoderOnlyTransformer& model, HuggingFaceFamily family, DType matrices) {
  const ModelConfig& c = model.config();
  Fields f;
  f.raw("architectures", format("[\"%s\"]", kFamilies[size_t(family)].architecture));
  f.add("model_type", kFamilies[size_t(family)].type);
  family == HuggingFaceFamily::gpt2 ? add_gpt2(f, c) : add_llama(f, c, family);
  f.add("vocab_size", c.vocabulary_size);
  f.add("tie_word_embeddings", c.tied_head);
  const char* const type = matrices == DType::f32   ? "float32"
                           : matrices == DType::f16 ? "float16"
                                                    : "bfloat16";
  f.add("torch_dtype", type);
  if (model.tokenizer()) {
    f.add("bos_token_id", model.tokenizer()->special().bos);
    f.add("eos_token_id", model.tokenizer()->special().eos);
    f.add("pad_token_id", model.tokenizer()->special().pad);
  }
  const std::string text = f.text();
  if (hugging_face_config(family, parse_json(text, "config.json"), "config.json") != c)
    refuse(format("the model type %s has other biases, windows or widths", kFamilies[size_t(family)].type)
               .c_str());
  return text;
}

// All tokens that end a generation; config.json has the first.
std::string generation_config_json(const SpecialTokens& special) {
  std::string ends;
  for (const uint32_t id : special.end_of_generation) ends += (ends.empty() ? "" : ", ") + std::to_string(id);
  Fields f;
  f.add("bos_token_id", special.bos);
  f.raw("eos_token_id", ends.empty() ? "null" : format("[%s]", ends.c_str()));
  return f.text();
}

// Where each shard begins among the tensors.
std::vector<size_t> shard_starts(std::span<const OutputTensor> plan, uint64_t most) {
  std::vector<size_t> starts{0};
  uint64_t bytes = 0;
  for (size_t i = 0; i < plan.size(); i++) {
    if (bytes > 0 && plan[i].bytes > most - std::min(most, bytes)) {
      starts.push_back(i);
      bytes = 0;
    }
    bytes += plan[i].bytes;
  }
  return starts;
}

const char* safetensors_type(DType type) {
  switch (type) {
    case DType::f32:
      return "F32";
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "BF16";
    default:
      refuse(format("it has matrices of %s; choose f32, f16 or bf16", dtype_info(type).name).c_str());
  }
}

void write_shard(const Weights& weights, std::span<const OutputTensor> plan, const std::string& path,
                 Progress& progress) {
  std::vector<SafetensorsTensor> tensors;
  for (const OutputTensor& tensor : plan)
    tensors.push_back({tensor.name, safetensors_type(tensor.type), tensor.shape});
  SafetensorsWriter writer(path, {{"format", "pt"}}, std::move(tensors));
  for (const OutputTensor& tensor : plan)
    write_tensor(weights, tensor, progress, [&](auto bytes) { writer.write(bytes); });
  writer.commit();
}

void write_weights(const Weights& weights, const std::vector<OutputTensor>& plan, const FolderWriter& folder,
                   SaveOptions& options) {
  const std::vector<size_t> starts = shard_starts(plan, options.shard_bytes);
  if (starts.size() == 1) return write_shard(weights, plan, folder / "model.safetensors", options.progress);
  std::string map;
  for (size_t i = 0; i < starts.size(); i++) {
    const size_t end = i + 1 < starts.size() ? starts[i + 1] : plan.size();
    const std::string name = format("model-%05zu-of-%05zu.safetensors", i + 1, starts.size());
    for (size_t t = starts[i]; t < end; t++)
      map += (map.empty() ? "\n    " : ",\n    ") + json_string(plan[t].name) + ": " + json_string(name);
    write_shard(weights, std::span(plan).subspan(starts[i], end - starts[i]), folder / name,
                options.progress);
  }
  folder.write("model.safetensors.index.json",
               format("{\n  \"metadata\": {\"total_size\": %llu},\n  \"weight_map\": {",
                      static_cast<unsigned long long>(total_bytes(plan))) +
                   map + "\n  }\n}\n");
}

}  // namespace

void write_hugging_face(const DecoderOnlyTransformer& model, std::string_view path, SaveOptions& options) {
  const HuggingFaceFamily family = family_of(model.config());
  if (model.config().biases & kBiasHead) refuse("its output head has a bias");
  const std::vector<OutputTensor> plan =
      plan_tensors(model.weights(), options.type, VectorTypes::as_matrices, [&](const std::string& name) {
        return hugging_face_tensor(family, name, hugging_face_prefix(family));
      });
  for (const OutputTensor& tensor : plan) safetensors_type(tensor.type);
  const std::string config = config_json(model, family, plan.front().type);
  std::string tokenizer_json, tokenizer_config;
  if (model.tokenizer()) {
    tokenizer_json = to_tokenizer_json(*model.tokenizer());
    tokenizer_config = to_tokenizer_config(*model.tokenizer());
  }

  options.progress.begin(total_bytes(plan));
  FolderWriter folder(path);
  write_weights(model.weights(), plan, folder, options);
  folder.write("config.json", config);
  if (model.tokenizer()) {
    folder.write("tokenizer.json", tokenizer_json);
    folder.write("tokenizer_config.json", tokenizer_config);
    folder.write("generation_config.json", generation_config_json(model.tokenizer()->special()));
  }
  options.progress.finish();
  folder.commit();
}

}  // namespace riftco
