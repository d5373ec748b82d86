// Adapters as the PEFT package reads them, for the Llama family's layout.
#include <algorithm>

#include "base/folder.h"
#include "base/json_text.h"
#include "io/safetensors.h"
#include "model/importers/tensor_names.h"
#include "model/lora_file.h"

namespace riftco {
namespace {

// "q_proj" of "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".
std::string module_of(const LoraTensors& tensors) {
  const std::string module = tensors.a.substr(0, tensors.a.rfind(".lora_A"));
  return module.substr(module.rfind('.') + 1);
}

std::string config_text(const LoraAdapters& lora, const std::vector<std::string>& modules) {
  std::string targets;
  for (const std::string& module : modules) targets += (targets.empty() ? "" : ", ") + json_string(module);
  return format(R"({
  "base_model_name_or_path": null,
  "bias": "none",
  "fan_in_fan_out": false,
  "inference_mode": true,
  "init_lora_weights": true,
  "lora_alpha": %s,
  "lora_dropout": 0.0,
  "peft_type": "LORA",
  "r": %u,
  "target_modules": [%s],
  "task_type": "CAUSAL_LM",
  "use_rslora": false
}
)",
                shortest_text(lora.options().alpha).c_str(), lora.options().rank, targets.c_str());
}

}  // namespace

void write_peft(const DecoderOnlyTransformer& model, std::string_view path) {
  const ModelConfig& config = model.config();
  if (config.position != PositionKind::rotary || config.activation != Activation::silu_gated)
    fail(Status::unsupported,
         "%s: PEFT's names are written for the Llama family's layout; save a .safetensors file",
         std::string(path).c_str());
  const LoraAdapters& lora = *attached_lora(model);
  const ParameterStore& store = lora.parameters();
  std::vector<SafetensorsTensor> tensors;
  std::vector<std::string> modules;
  for (size_t i = 0; i < lora.places().size(); i++) {
    const LoraTensors names = peft_tensors(lora_family(config), lora.places()[i].name);
    const ParameterInfo &a = store.parameters()[2 * i], &b = store.parameters()[2 * i + 1];
    tensors.push_back({names.a, "F32", {a.rows, a.columns}});
    tensors.push_back({names.b, "F32", {b.rows, b.columns}});
    if (std::ranges::find(modules, module_of(names)) == modules.end()) modules.push_back(module_of(names));
  }
  FolderWriter folder(path);
  SafetensorsWriter writer(folder / "adapter_model.safetensors", {{"format", "pt"}}, std::move(tensors));
  write_values(store, [&](auto bytes) { writer.write(bytes); });
  writer.commit();
  folder.write("adapter_config.json", config_text(lora, modules));
  folder.commit();
}

}  // namespace riftco
