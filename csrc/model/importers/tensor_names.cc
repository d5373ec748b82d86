#include "model/importers/tensor_names.h"

#include <span>

#include "base/error.h"

namespace riftco {
namespace {

// "layers.3.q.weight" is layer "3", part "q", suffix ".weight"; of others the layer is empty.
struct NativeName {
  explicit NativeName(const std::string& name) {
    const size_t last = name.rfind('.');
    suffix = name.substr(last);
    part = name.substr(0, last);
    if (!name.starts_with("layers.")) return;
    const size_t at = sizeof("layers.") - 1, dot = name.find('.', at);
    layer = name.substr(at, dot - at);
    part = name.substr(dot + 1, last - dot - 1);
  }
  std::string layer, part, suffix;
};

struct Part {
  const char *native, *file;
};
const char* lookup(std::span<const Part> parts, const std::string& native) {
  for (const Part& part : parts)
    if (native == part.native) return part.file;
  fail(Status::internal, "there is no tensor name for %s", native.c_str());
}

constexpr Part kGgufParts[] = {{"attention_norm", "attn_norm"},
                               {"mlp_norm", "ffn_norm"},
                               {"q", "attn_q"},
                               {"k", "attn_k"},
                               {"v", "attn_v"},
                               {"o", "attn_output"},
                               {"gate", "ffn_gate"},
                               {"up", "ffn_up"},
                               {"down", "ffn_down"},
                               {"final_norm", "output_norm"},
                               {"head", "output"},
                               {"q_norm", "attn_q_norm"},
                               {"k_norm", "attn_k_norm"}};
constexpr Part kGpt2Parts[] = {{"attention_norm", "ln_1"},
                               {"mlp_norm", "ln_2"},
                               {"o", "attn.c_proj"},
                               {"up", "mlp.c_fc"},
                               {"down", "mlp.c_proj"}};
constexpr Part kLlamaParts[] = {{"attention_norm", "input_layernorm"},
                                {"mlp_norm", "post_attention_layernorm"},
                                {"q", "self_attn.q_proj"},
                                {"k", "self_attn.k_proj"},
                                {"v", "self_attn.v_proj"},
                                {"o", "self_attn.o_proj"},
                                {"gate", "mlp.gate_proj"},
                                {"up", "mlp.up_proj"},
                                {"down", "mlp.down_proj"},
                                {"q_norm", "self_attn.q_norm"},
                                {"k_norm", "self_attn.k_norm"}};

uint32_t index_in_qkv(const std::string& part) { return part == "q" ? 0 : part == "k" ? 1 : 2; }
bool is_qkv(const std::string& part) { return part == "q" || part == "k" || part == "v"; }

}  // namespace

TensorName gguf_tensor(std::string_view architecture, const std::string& parameter) {
  if (parameter == "embedding.token") return {.name = "token_embd.weight"};
  if (parameter == "embedding.position") return {.name = "position_embd.weight"};
  if (parameter == "rotary.factors") return {.name = "rope_freqs.weight"};
  const NativeName native(parameter);
  const std::string block = native.layer.empty() ? "" : "blk." + native.layer + ".";
  if (architecture == "gpt2" && is_qkv(native.part))
    return {.name = block + "attn_qkv" + native.suffix, .part = index_in_qkv(native.part), .parts = 3};
  const bool rotated = native.part == "q" || native.part == "k";
  return {.name = block + lookup(kGgufParts, native.part) + native.suffix,
          .interleaved = rotated && architecture == "llama"};
}

const char* hugging_face_prefix(HuggingFaceFamily family) noexcept {
  return family == HuggingFaceFamily::gpt2 ? "transformer." : "model.";
}

TensorName hugging_face_tensor(HuggingFaceFamily family, const std::string& parameter,
                               const std::string& prefix) {
  const bool gpt2 = family == HuggingFaceFamily::gpt2;
  if (parameter == "embedding.token") return {.name = prefix + (gpt2 ? "wte.weight" : "embed_tokens.weight")};
  if (parameter == "embedding.position") return {.name = prefix + "wpe.weight"};
  if (parameter == "head.weight") return {.name = "lm_head.weight"};
  const NativeName native(parameter);
  if (native.layer.empty()) return {.name = prefix + (gpt2 ? "ln_f" : "norm") + native.suffix};
  if (!gpt2)
    return {.name =
                prefix + "layers." + native.layer + "." + lookup(kLlamaParts, native.part) + native.suffix};
  const std::string layer = prefix + "h." + native.layer + ".";
  const bool matrix = native.suffix == ".weight" && !native.part.ends_with("_norm");
  if (is_qkv(native.part))
    return {.name = layer + "attn.c_attn" + native.suffix,
            .part = index_in_qkv(native.part),
            .parts = 3,
            .transposed = matrix};
  return {.name = layer + lookup(kGpt2Parts, native.part) + native.suffix, .transposed = matrix};
}

LoraTensors peft_tensors(HuggingFaceFamily family, const std::string& linear) {
  const TensorName weight = hugging_face_tensor(family, linear + ".weight", hugging_face_prefix(family));
  const std::string module = weight.name.substr(0, weight.name.rfind('.'));
  return {"base_model.model." + module + ".lora_A.weight", "base_model.model." + module + ".lora_B.weight",
          weight.part, weight.parts};
}

}  // namespace riftco
