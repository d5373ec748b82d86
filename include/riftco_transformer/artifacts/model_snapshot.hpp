// A model as it lies on disk.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "riftco_transformer/artifacts/model.hpp"

namespace riftco_transformer::artifacts {

// Names a .gguf file, a .rift file or a Hugging Face folder; its weights are read by load().
class ModelSnapshot {
 public:
  // Reads the description: a file that is missing, broken or unsupported throws here.
  explicit ModelSnapshot(std::string_view path) : path_(path) {
    std::uint64_t size = 0;
    detail::check(rt_model_inspect(path_.data(), path_.size(), nullptr, 0, &size));
    description_.resize(size);
    detail::check(rt_model_inspect(path_.data(), path_.size(), description_.data(), size, &size));
    description_.resize(size);
  }

  const std::string& path() const noexcept { return path_; }

  // Format, config, tensors, tokenizer and an estimate of the memory, as one JSON document.
  const std::string& description() const noexcept { return description_; }

  Model load(ExecutionBackend backend = ExecutionBackend::Cpu, std::uint32_t threads = 0,
             ElementType type = ElementType::Keep, Compute compute = Compute::Exact) const {
    return Model(path_, backend, threads, type, compute);
  }

 private:
  std::string path_, description_;
};

}  // namespace riftco_transformer::artifacts
