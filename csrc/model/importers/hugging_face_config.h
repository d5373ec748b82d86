// config.json of Hugging Face folders, as transformers 4 and 5 write it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "model/config.h"
#include "model/importers/tensor_names.h"

namespace riftco {

// From model_type; unsupported for another one, by name.
HuggingFaceFamily hugging_face_family(const nlohmann::json& config, const std::string& source);

// unsupported, naming field and value, for what changes the computation and is not built.
ModelConfig hugging_face_config(HuggingFaceFamily family, const nlohmann::json& config,
                                const std::string& source);

}  // namespace riftco
