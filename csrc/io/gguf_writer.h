// Writes GGUF files (version 3).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "core/dtype.h"
#include "io/gguf.h"

namespace riftco {

// Metadata entries in the order in which they are added; the format's own types.
class GgufMetadata {
 public:
  void add(std::string_view key, uint32_t value);
  void add(std::string_view key, float value);
  void add(std::string_view key, bool value);
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  void add(std::string_view key, const std::vector<std::string>& values);
  void add(std::string_view key, const std::vector<int32_t>& values);
  void add(std::string_view key, const std::vector<float>& values);

  uint64_t count() const noexcept { return count_; }
  const std::string& bytes() const noexcept { return bytes_; }  // as they lie in a file

 private:
  void start(std::string_view key, GgufType type);
  void start_array(std::string_view key, GgufType type, size_t count);

  std::string bytes_;
  uint64_t count_ = 0;
};

struct GgufOutputTensor {
  std::string name;
  DType type;
  std::vector<uint64_t> shape;  // outermost first
  uint64_t bytes;
};

// Writes one file, tensors in the given order; the same input gives the same bytes. `path` changes at
// commit(), whole.
class GgufWriter {
 public:
  // unsupported for a type that the format does not have.
  GgufWriter(std::string_view path, const GgufMetadata& metadata, std::vector<GgufOutputTensor> tensors);
  // The next bytes of the tensors, one after the other; a piece does not span two of them.
  void write(std::span<const std::byte> bytes);
  void commit();  // invalid_state unless every byte was written

 private:
  void pad();

  AtomicFileWriter file_;
  std::vector<GgufOutputTensor> tensors_;
  size_t current_ = 0;
  uint64_t written_ = 0;  // of the current tensor
};

}  // namespace riftco
