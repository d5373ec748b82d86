// GGUF files of the architectures gpt2, llama and qwen3.
#include "core/math.h"
#include "io/gguf_writer.h"
#include "model/exporters/exporters.h"
#include "model/exporters/output_tensor.h"

namespace riftco {
namespace {

constexpr uint32_t kGpt2Biases = kBiasQ | kBiasK | kBiasV | kBiasO | kBiasUp | kBiasDown | kBiasNorms;
constexpr uint32_t kLlamaBiases = kBiasQ | kBiasK | kBiasV | kBiasO | kBiasUp | kBiasGate | kBiasDown;

[[noreturn]] void refuse(const char* what) {
  fail(Status::unsupported, "a GGUF file cannot hold this model: %s", what);
}

const char* architecture_of(const ModelConfig& c) {
  if (c.position == PositionKind::learned) {
    if (c.norm != NormKind::layer || c.activation != Activation::gelu_tanh)
      refuse("learned positions go with layer norms and gelu_tanh (gpt2)");
    if (c.biases != kGpt2Biases) refuse("gpt2 has biases at all projections but the head");
    if (c.kv_head_count != c.head_count || c.head_count * c.head_width != c.width)
      refuse("gpt2 has heads that make up its width, each with its own keys");
    return "gpt2";
  }
  if (c.norm != NormKind::rms || c.activation != Activation::silu_gated)
    refuse("rotary positions go with rms norms and silu_gated (llama)");
  if (c.biases & ~kLlamaBiases) refuse("llama has no biases at the head or the norms");
  if (c.rotary_width != c.head_width) refuse("llama rotates whole heads");
  // Other readers of these architectures know no window.
  if (c.sliding_window != 0 && c.sliding_window < c.maximum_context) refuse("a sliding window");
  if (!c.qk_norm) return "llama";
  if (c.biases != 0) refuse("qwen3 has no biases");
  return "qwen3";
}

float exact_float(double value, const char* what) {
  if (double(float(value)) != value) refuse(format("%s %.17g is not a float32", what, value).c_str());
  return float(value);
}

// general.file_type of the format, for people: the type of most matrices, told by the last one's.
uint32_t file_type(DType type) {
  constexpr std::pair<DType, uint32_t> kNumbers[] = {{DType::f32, 0},   {DType::f16, 1},   {DType::q4_0, 2},
                                                     {DType::q4_1, 3},  {DType::q8_0, 7},  {DType::q5_0, 8},
                                                     {DType::q5_1, 9},  {DType::q4_k, 15}, {DType::q5_k, 17},
                                                     {DType::q6_k, 18}, {DType::bf16, 32}};
  for (const auto& [known, number] : kNumbers)
    if (known == type) return number;
  return 1024;  // "guessed"
}

void add_scaling(GgufMetadata& m, const ModelConfig& c, const std::string& prefix) {
  switch (c.rotary_scaling) {
    case RotaryScaling::none:
    case RotaryScaling::factors:  // a tensor
      return;
    case RotaryScaling::llama3:
      refuse("llama3 scaling becomes rounded factors there");
    case RotaryScaling::linear:
    case RotaryScaling::yarn:
      break;
  }
  const bool yarn = c.rotary_scaling == RotaryScaling::yarn;
  m.add(prefix + "type", yarn ? "yarn" : "linear");
  m.add(prefix + "factor", exact_float(c.rotary_factor, "rotary_factor"));
  if (!yarn) return;
  if (c.rotary_attention_factor != (c.rotary_factor > 1 ? 0.1 * math::log(c.rotary_factor) + 1 : 1))
    refuse("yarn with an attention factor that does not follow from its factor");
  m.add(prefix + "original_context_length", c.rotary_original_context);
  m.add(prefix + "yarn_beta_fast", exact_float(c.rotary_fast_rotations, "rotary_fast_rotations"));
  m.add(prefix + "yarn_beta_slow", exact_float(c.rotary_slow_rotations, "rotary_slow_rotations"));
}

void add_config(GgufMetadata& m, const ModelConfig& c, const std::string& architecture) {
  const auto key = [&](const char* name) { return architecture + "." + name; };
  m.add(key("vocab_size"), c.vocabulary_size);
  m.add(key("context_length"), c.maximum_context);
  m.add(key("embedding_length"), c.width);
  m.add(key("block_count"), c.layer_count);
  m.add(key("feed_forward_length"), c.mlp_width);
  m.add(key("attention.head_count"), c.head_count);
  m.add(key("attention.head_count_kv"), c.kv_head_count);
  // Steps compute with the float of it, so nothing is lost.
  m.add(key(c.norm == NormKind::rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"),
        float(c.norm_epsilon));
  if (c.position != PositionKind::rotary) return;
  m.add(key("attention.key_length"), c.head_width);
  m.add(key("attention.value_length"), c.head_width);
  m.add(key("rope.dimension_count"), c.rotary_width);
  m.add(key("rope.freq_base"), exact_float(c.rotary_base, "rotary_base"));
  add_scaling(m, c, architecture + ".rope.scaling.");
}

void add_tokenizer(GgufMetadata& m, const Tokenizer& tokenizer, uint32_t vocabulary_size) {
  const GgufTokenizer t = to_gguf_tokenizer(tokenizer, vocabulary_size);
  m.add("tokenizer.ggml.model", t.model);
  m.add("tokenizer.ggml.pre", t.pre);
  m.add("tokenizer.ggml.tokens", t.tokens);
  if (!t.scores.empty()) m.add("tokenizer.ggml.scores", t.scores);
  m.add("tokenizer.ggml.token_type", t.token_types);
  if (!t.merges.empty()) m.add("tokenizer.ggml.merges", t.merges);
  for (const auto& [name, id] : t.ids) m.add("tokenizer.ggml." + name + "_token_id", id);
  for (const auto& [name, value] : t.flags) m.add("tokenizer.ggml." + name, value);
  if (!t.chat_template.empty()) m.add("tokenizer.chat_template", t.chat_template);
}

}  // namespace

void write_gguf(const DecoderOnlyTransformer& model, std::string_view path, SaveOptions& options) {
  const ModelConfig& config = model.config();
  const std::string architecture = architecture_of(config);
  const std::vector<OutputTensor> plan =
      plan_tensors(model.weights(), options.type, VectorTypes::float32,
                   [&](const std::string& name) { return gguf_tensor(architecture, name); });
  std::vector<GgufOutputTensor> tensors;
  DType matrices = DType::f32;
  for (const OutputTensor& tensor : plan) {
    tensors.push_back({tensor.name, tensor.type, tensor.shape, tensor.bytes});
    if (tensor.shape.size() == 2) matrices = tensor.type;
  }
  GgufMetadata metadata;
  metadata.add("general.architecture", architecture);
  const auto name = model.metadata().find("general.name");
  if (name != model.metadata().end()) metadata.add("general.name", name->second);
  metadata.add("general.file_type", file_type(matrices));
  if (is_quantised(matrices)) metadata.add("general.quantization_version", 2u);
  add_config(metadata, config, architecture);
  if (model.tokenizer()) add_tokenizer(metadata, *model.tokenizer(), config.vocabulary_size);

  options.progress.begin(total_bytes(plan));
  GgufWriter writer(path, metadata, std::move(tensors));
  for (const OutputTensor& tensor : plan)
    write_tensor(model.weights(), tensor, options.progress, [&](auto bytes) { writer.write(bytes); });
  options.progress.finish();
  writer.commit();
}

}  // namespace riftco
