// Adapters as the PEFT package saves them: adapter_config.json and adapter_model.safetensors.
#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "io/table.h"
#include "model/importers/lora_reader.h"
#include "model/lora_file.h"

namespace riftco {
namespace {

using nlohmann::json;

constexpr uint64_t kMostConfigBytes = 16 << 20;

// Fields that change nothing of what finished adapters compute, or that are looked at by themselves. All others must be
// empty: they may ask for another computation.
constexpr const char* kHarmless[] = {"auto_mapping",      "base_model_name_or_path", "bias",
                                     "exclude_modules",   "fan_in_fan_out",          "inference_mode",
                                     "init_lora_weights", "layers_pattern",          "lora_alpha",
                                     "lora_dropout",      "megatron_core",           "peft_type",
                                     "peft_version",      "qalora_group_size",       "r",
                                     "revision",          "target_modules",          "task_type",
                                     "use_rslora"};

class Config {
 public:
  Config(std::string_view text, const std::string& path) : path_(path), json_(parse_json(text, path)) {
    if (!json_.is_object()) fail(Status::corrupt_data, "%s: not an object", path.c_str());
    require("peft_type", {"LORA"});
    require("bias", {"none"});
    // "pissa", "olora" and others also change the base model.
    require("init_lora_weights", {true, false, "gaussian", "orthogonal"});
    for (const auto& [key, value] : json_.items())
      if (std::ranges::find(kHarmless, key) == std::end(kHarmless) && !is_empty(value))
        refuse(key.c_str(), value);
  }

  uint32_t rank() const {
    const json& value = field("r");
    if (!value.is_number_unsigned() || value.get<uint64_t>() > UINT32_MAX)
      fail(Status::corrupt_data, "%s: r is %s", path_.c_str(), shown(value.dump()).c_str());
    return value.get<uint32_t>();
  }

  // As alpha / rank has it; rank-stabilised LoRA (Kalajdzievski 2023) divides by the root of the rank.
  double alpha() const {
    const json& value = field("lora_alpha");
    if (!value.is_number())
      fail(Status::corrupt_data, "%s: lora_alpha is %s", path_.c_str(), shown(value.dump()).c_str());
    const json& stabilised = field("use_rslora");
    if (!stabilised.is_null() && !stabilised.is_boolean()) refuse("use_rslora", stabilised);
    return value.get<double>() * (stabilised == true ? std::sqrt(double(rank())) : 1.0);
  }

 private:
  const json& field(const char* name) const {
    static const json null;
    const auto found = json_.find(name);
    return found == json_.end() ? null : *found;
  }

  static bool is_empty(const json& value) {
    return value.is_null() || value == false || value == "" || (value.is_structured() && value.empty());
  }

  [[noreturn]] void refuse(const char* name, const json& value) const {
    fail(Status::unsupported, "%s: %s is %s, which is not computed", path_.c_str(), shown(name).c_str(),
         shown(value.dump()).c_str());
  }

  // Absent, or one of these.
  void require(const char* name, std::initializer_list<json> values) const {
    const json& value = field(name);
    if (!value.is_null() && std::find(values.begin(), values.end(), value) == values.end())
      refuse(name, value);
  }

  std::string path_;
  json json_;
};

}  // namespace

std::shared_ptr<LoraAdapters> read_peft(const DecoderOnlyTransformer& model, std::string_view path) {
  const std::string config = std::string(path) + "/adapter_config.json";
  return read_peft(model, read_small_file(config, kMostConfigBytes), config,
                   std::make_shared<const File>(std::string(path) + "/adapter_model.safetensors"));
}

std::shared_ptr<LoraAdapters> read_peft(const DecoderOnlyTransformer& model, std::string_view config_text,
                                        const std::string& config_path, std::shared_ptr<const File> tensors) {
  const Config config(config_text, config_path);
  const SafetensorsReader reader(std::move(tensors));
  const HuggingFaceFamily family = lora_family(model.config());
  return read_lora(model, reader, config.rank(), config.alpha(),
                   [&](const std::string& linear) { return peft_tensors(family, linear); });
}

}  // namespace riftco
