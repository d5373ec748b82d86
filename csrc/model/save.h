// Models to files.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/progress.h"
#include "model/transformer.h"

namespace riftco {

enum class FileFormat : uint8_t { rift, gguf, hugging_face };

// A folder that is there, or a name without a suffix or with "/" at its end.
bool names_folder(std::string_view path);

// By the suffix .rift or .gguf; a folder, or a name without a suffix or with "/" at its end, is a Hugging Face
// folder. invalid_argument for others.
FileFormat format_of_path(std::string_view path);

struct SaveOptions {
  FileFormat format = FileFormat::rift;
  std::optional<DType> type = {};        // of matrices; absent: as they are
  uint64_t shard_bytes = 5'000'000'000;  // of tensors in one file of a Hugging Face folder, but one at least
  std::string_view stage = {}, parent = {};  // .rift only: RiftMetadata's
  Progress progress{"saving"};
};

// Writes a file or folder, whole or not at all. What the format cannot hold exactly is refused by name
// (unsupported). A folder that is there must be empty. A .rift file with kept types gives the same bits when it is loaded.
void save_model(const DecoderOnlyTransformer& model, std::string_view path, SaveOptions options);

}  // namespace riftco
