// XXH3-128 over what a file of the project says, whatever the layout of its JSON.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "io/safetensors.h"

namespace riftco {

inline constexpr char kChecksumKey[] = "riftco.checksum";  // in the metadata of such a file

class Checksum {
 public:
  Checksum();
  ~Checksum();
  void add(std::span<const std::byte> bytes);
  void add(uint64_t number) { add(std::as_bytes(std::span(&number, 1))); }
  void add(std::string_view text);
  std::string text() const;  // "xxh3-128:" and 32 hex digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The metadata but for the checksum itself, and the tensor table.
void add_header(Checksum& checksum, const SafetensorsMetadata& metadata,
                const std::vector<SafetensorsTensor>& tensors);

// Reads the whole file once, in large pieces; corrupt_data where the checksum is missing or another one.
void check_file_checksum(const SafetensorsReader& reader, Progress& progress);

}  // namespace riftco
