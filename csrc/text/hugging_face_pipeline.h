// The parts of tokenizer.json that text passes on its way to the model and back.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "text/tokenizer_spec.h"

namespace riftco {

// Fills spelling, normalizer, space_prefix, stages and strips_first_space; unsupported by name for the rest.
void read_pipeline(TokenizerSpec& spec, const nlohmann::json& root, const std::string& where);

}  // namespace riftco
