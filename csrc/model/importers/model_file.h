// A readable model file or folder: its geometry, tokenizer and parameters under native names. One class a format; family
// names live in these files only.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/progress.h"
#include "model/config.h"
#include "model/transformer.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace riftco {

struct FileTensor {
  std::string name;
  std::string type;
  std::vector<uint64_t> shape;  // outermost first
  uint64_t bytes;
};

// A parameter's values as the file has them. A unit is a row of a matrix, or an element of a vector; each is read once, by
// any thread.
struct ParameterSource {
  DType type;
  uint32_t granularity = 1;  // reads begin at, and are of, a multiple of this many units
  std::function<void(uint32_t first, uint32_t units, std::byte* out)> read;
};

class ModelFile {
 public:
  virtual ~ModelFile() = default;
  virtual const char* format() const noexcept = 0;  // "gguf", "huggingface", "rift"
  virtual const std::string& path() const noexcept = 0;
  virtual std::vector<FileTensor> tensors() const = 0;

  // Fails with unsupported, by name, for what cannot be computed exactly.
  virtual ModelConfig config() const = 0;
  virtual std::shared_ptr<const Tokenizer> tokenizer() const = 0;  // null: the file has none

  // What else the file says, as text by key. Long lists (a vocabulary) are left out.
  virtual ModelMetadata metadata() const = 0;

  // Fails when the tensor is missing, has another shape, or a type that is not read.
  virtual ParameterSource open(const ParameterInfo& parameter) const = 0;

  // Names of tensors that `open` has not been asked for and that change what a model computes.
  virtual std::vector<std::string> unread() const = 0;
};

std::unique_ptr<ModelFile> open_gguf(std::shared_ptr<const File> file);
std::unique_ptr<ModelFile> open_hugging_face(std::string_view path);
std::unique_ptr<ModelFile> open_rift(std::shared_ptr<const File> file, Progress& progress);

// Fails with corrupt_data unless the shape of a file's tensor is the expected one.
void check_shape(const std::string& path, std::string_view tensor, const std::vector<uint64_t>& shape,
                 const std::vector<uint64_t>& expected);

}  // namespace riftco
