// Adapters alone, to and from files: one .safetensors file with native names, or a folder as the PEFT package has it.
//
// Native: the adapters' parameters as F32 under their names, and in the metadata
//   riftco.lora                 "1.0": a newer minor is read, a newer major is refused
//   riftco.rank, riftco.alpha   numbers as text
//   riftco.checksum             as in a .rift file
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"
#include "model/importers/tensor_names.h"
#include "model/lora.h"

namespace riftco {

// Whole or not at all. A path that ends with .safetensors is a native file; a folder, or a name without a suffix or with "/"
// at its end, is PEFT's, which must not be there or be empty; it is for models of the Llama family's layout (unsupported for
// others). invalid_state where the model has no adapters.
void save_lora(const DecoderOnlyTransformer& model, std::string_view path);

// Attaches what such a file or folder has; PEFT's of GPT-2 are read too. What would compute something else is refused by
// name (unsupported), what contradicts itself or the model is corrupt_data. invalid_state where the model has adapters.
void load_lora(ModelChange& change, std::string_view path);
void load_lora(ModelChange& change, std::shared_ptr<const File> file);  // a native one

// --- the formats

void write_peft(const DecoderOnlyTransformer& model, std::string_view path);
std::shared_ptr<LoraAdapters> read_peft(const DecoderOnlyTransformer& model, std::string_view path);
std::shared_ptr<LoraAdapters> read_peft(const DecoderOnlyTransformer& model, std::string_view config_text,
                                        const std::string& config_path, std::shared_ptr<const File> tensors);

// Whose names PEFT has for a model of this geometry.
HuggingFaceFamily lora_family(const ModelConfig& config);

// The shortest text that reads back to the same number.
std::string shortest_text(double value);

// Hands out all values, parameter by parameter, as F32.
void write_values(const ParameterStore& store, const std::function<void(std::span<const std::byte>)>& write);

}  // namespace riftco
