// Models from files, to files, and from nothing.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/progress.h"
#include "model/transformer.h"
#include "text/tokenizer.h"

namespace riftco {

struct LoadOptions {
  int32_t backend = 0;                 // Backend's numbers
  uint32_t threads = 0;                // workers, the caller included; 0: the CPUs that the process may use
  uint64_t memory_limit = UINT64_MAX;  // bytes of weights and activations
  std::optional<DType> type = {};      // of matrices; absent: as they are
  Compute compute = Compute::exact;    // bf16: unsupported where no matrix that steps multiply with is bf16
  Progress progress{"loading"};
};

// From a .gguf file, a .rift file or, by path only, a Hugging Face folder. What cannot be computed exactly is
// refused by name (unsupported). The importers under model/importers/ know the families' names and layouts.
// Nothing refers to the file afterwards.
std::shared_ptr<DecoderOnlyTransformer> load_model(std::string_view path, LoadOptions options);
std::shared_ptr<DecoderOnlyTransformer> load_model(std::shared_ptr<const File> file, LoadOptions options);

// A JSON document about it: format, config, tensors, tokenizer, memory estimate, metadata. Reads no weights.
std::string inspect_model(std::string_view path);
std::string inspect_model(std::shared_ptr<const File> file);

// The tokenizer of such a file or folder, or of a tokenizer.json.
std::shared_ptr<const Tokenizer> load_tokenizer(std::string_view path);

// Random parameters, float32 before options.type: normal with deviation 0.02, norms one, biases zero; from the seed alone.
// `tokenizer` may be null.
std::shared_ptr<DecoderOnlyTransformer> create_model(const ModelConfig& config,
                                                     std::shared_ptr<const Tokenizer> tokenizer,
                                                     uint64_t seed, LoadOptions options);

}  // namespace riftco
