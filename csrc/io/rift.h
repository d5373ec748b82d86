// The project's own model file: a safetensors file whose metadata carries config, tokenizer and a checksum.
//
//   riftco.format     "1.0": a newer minor is read, a newer major is refused; every later reader reads this
//   one riftco.config, riftco.tokenizer   JSON text;  riftco.stage, riftco.parent   text, absent when empty
//   riftco.types      JSON object: type name of each quantised tensor, which is stored as U8 [rows, row
//   bytes] riftco.checksum   "xxh3-128:" and 32 hex digits over the other metadata, the tensor table and the
//   data
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "io/checksum.h"
#include "io/safetensors.h"

namespace riftco {

struct RiftMetadata {
  std::string config;     // JSON
  std::string tokenizer;  // JSON; empty: none
  std::string stage;      // what made the weights ("pretrained", "post_trained", ...); may be empty
  std::string parent;     // what they were made from; may be empty
};

struct RiftTensor {
  std::string name;
  DType type;
  std::vector<uint64_t> shape;  // in elements, outermost first; a quantised tensor has two dimensions
  uint64_t offset = 0;          // from the start of the file
  uint64_t bytes = 0;
};

class RiftReader {
 public:
  // Checks the header and, in one pass of large reads over the whole file, the checksum (about the time that
  // reading the file takes). version_mismatch for a newer major format. `progress` begins with twice the
  // data: for this pass, and for reading the tensors.
  explicit RiftReader(std::shared_ptr<const File> file, Progress* progress = nullptr);

  const File& file() const noexcept { return reader_.file(); }
  const RiftMetadata& metadata() const noexcept { return metadata_; }
  const SafetensorsMetadata& all_metadata() const noexcept { return reader_.metadata(); }
  const std::vector<RiftTensor>& tensors() const noexcept { return tensors_; }
  const RiftTensor* find(std::string_view name) const noexcept;  // null when absent
  // Reads bytes [at, at + out.size()) of the tensor; out_of_range beyond its end.
  void read(const RiftTensor& tensor, uint64_t at, std::span<std::byte> out) const;

 private:
  SafetensorsReader reader_;
  RiftMetadata metadata_;
  std::vector<RiftTensor> tensors_;  // in the reader's order
};

// Writes one file, tensors in the given order; the same input gives the same bytes. `path` changes at
// commit().
class RiftWriter {
 public:
  // Of each tensor the name, type and shape are used.
  RiftWriter(std::string_view path, const RiftMetadata& metadata, const std::vector<RiftTensor>& tensors);
  void write(std::span<const std::byte> bytes);  // the next bytes of the tensors, one after the other
  void commit();                                 // invalid_state unless every byte was written

 private:
  std::unique_ptr<Checksum> checksum_;
  SafetensorsMetadata metadata_;
  SafetensorsWriter writer_;
};

}  // namespace riftco
