// A model's parameters as the tensors of a file to be written.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/progress.h"
#include "model/importers/tensor_names.h"
#include "model/weights.h"

namespace riftco {

struct OutputTensor {
  std::string name;
  DType type;
  std::vector<uint64_t> shape;  // as written, outermost first
  uint64_t bytes;
  std::vector<size_t> parameters;  // of the model: their rows (vectors: elements), one after another
  bool transposed, interleaved;    // see TensorName
};

// Vectors are float32, or of the matrices' type where that loses nothing.
enum class VectorTypes : uint8_t { float32, as_matrices };

// One for each tensor, with matrices as `type` says (absent: as they are; positions are float32 in a quantised
// file). Fails with unsupported, by name, for what a tensor cannot hold.
std::vector<OutputTensor> plan_tensors(const Weights& weights, std::optional<DType> type, VectorTypes vectors,
                                       const std::function<TensorName(const std::string&)>& name);

uint64_t total_bytes(std::span<const OutputTensor> tensors) noexcept;

// Hands out the tensor's bytes in pieces of about a MiB. unsupported for a value that its type cannot hold.
void write_tensor(const Weights& weights, const OutputTensor& tensor, Progress& progress,
                  const std::function<void(std::span<const std::byte>)>& write);

}  // namespace riftco
