// The safetensors format: a JSON header with names, types, shapes and offsets, then the tensors' bytes.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "core/dtype.h"

namespace riftco {

struct SafetensorsTensor {
  std::string name;
  std::string dtype;            // as in the file: "F32", "BF16", "U8", ...
  std::vector<uint64_t> shape;  // outermost first, rows contiguous; empty for a scalar
  uint64_t offset = 0;          // from the start of the file
  uint64_t bytes = 0;
};

using SafetensorsMetadata = std::map<std::string, std::string, std::less<>>;

// Checks the whole header at opening: corrupt_data for anything that the format forbids (holes, overlaps,
// sizes that do not fit, duplicate names), unsupported for an element type that it does not know.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(std::shared_ptr<const File> file);

  const File& file() const noexcept { return *file_; }
  const std::vector<SafetensorsTensor>& tensors() const noexcept {
    return tensors_;
  }                                                                     // in the header's order
  const SafetensorsTensor* find(std::string_view name) const noexcept;  // null when absent
  const SafetensorsMetadata& metadata() const noexcept { return metadata_; }
  uint64_t data_offset() const noexcept { return data_offset_; }  // the data section runs to the file's end

  DType dtype(const SafetensorsTensor& tensor) const;  // f32, f16 or bf16; unsupported for others, by name
  // Reads bytes [at, at + out.size()) of the tensor; out_of_range beyond its end.
  void read(const SafetensorsTensor& tensor, uint64_t at, std::span<std::byte> out) const;

 private:
  std::shared_ptr<const File> file_;
  std::vector<SafetensorsTensor> tensors_;
  std::vector<uint32_t> by_name_;  // indices into tensors_, sorted by name
  SafetensorsMetadata metadata_;
  uint64_t data_offset_ = 0;
};

// Writes one file, tensors in the given order; the same input gives the same bytes. Only pieces that the
// caller passes are in memory. `path` changes at commit(), whole.
class SafetensorsWriter {
 public:
  // Of each tensor the name, dtype and shape are used; offset and bytes are filled in.
  SafetensorsWriter(std::string_view path, const SafetensorsMetadata& metadata,
                    std::vector<SafetensorsTensor> tensors);

  const std::vector<SafetensorsTensor>& tensors() const noexcept { return tensors_; }
  void write(std::span<const std::byte> bytes);  // the next bytes of the data section
  // Replaces the metadata with one whose header has the same length (a checksum known only at the end).
  void rewrite_metadata(const SafetensorsMetadata& metadata);
  void commit();  // invalid_state unless every byte of every tensor was written

 private:
  AtomicFileWriter file_;
  std::vector<SafetensorsTensor> tensors_;
  uint64_t header_bytes_ = 0, end_ = 0;
};

}  // namespace riftco
