// One writer a format. Each refuses by name (unsupported) what its format cannot hold, before it touches `path`.
#pragma once
#include <string>
#include <string_view>

#include "model/save.h"

namespace riftco {

void write_rift(const DecoderOnlyTransformer& model, std::string_view path, SaveOptions& options);
void write_gguf(const DecoderOnlyTransformer& model, std::string_view path, SaveOptions& options);
void write_hugging_face(const DecoderOnlyTransformer& model, std::string_view path, SaveOptions& options);

}  // namespace riftco
