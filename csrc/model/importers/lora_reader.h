// Adapters out of a safetensors file, whatever it calls them.
#pragma once
#include <functional>

#include "io/safetensors.h"
#include "model/importers/tensor_names.h"
#include "model/lora.h"

namespace riftco {

using LoraNaming = std::function<LoraTensors(const std::string& linear)>;

// Adapters for the linears that the file has factors of, in every layer the same. Sizes are checked before anything is
// allocated. Fails with corrupt_data, or with unsupported for tensors that are no factor of the model's linears.
std::shared_ptr<LoraAdapters> read_lora(const DecoderOnlyTransformer& model, const SafetensorsReader& reader,
                                        uint32_t rank, double alpha, const LoraNaming& naming);

}  // namespace riftco
