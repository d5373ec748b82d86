// The GGUF format (versions 2 and 3, little endian): typed metadata, tensor descriptions, then aligned data.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "core/dtype.h"

namespace riftco {

// Numbers are the format's.
enum class GgufType : uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};
const char* gguf_type_name(GgufType type) noexcept;

// One metadata entry. Views point into the reader.
struct GgufEntry {
  std::string_view key;
  GgufType type;  // of the elements when `is_array`; arrays of arrays are refused
  bool is_array;
  uint64_t count;                   // elements; 1 for a single value
  std::span<const std::byte> data;  // the value(s) as they lie in the file, checked
};

// A value for people: a string as it is, a list as JSON.
std::string gguf_value_text(const GgufEntry& entry);

struct GgufTensor {
  std::string_view name;
  uint32_t type;                // ggml type number
  std::vector<uint64_t> shape;  // outermost first, the reverse of the file's order: [rows, row elements]
  uint64_t offset;              // from the start of the file
  uint64_t bytes;               // 0 when the type's block size is not known
};
std::string ggml_type_name(uint32_t type);  // "Q4_K"; "type 99" when unknown
uint32_t ggml_type_number(DType type) noexcept;

// Checks the whole header at opening (corrupt_data). It keeps the header's bytes (a few MB of vocabulary in a
// real model), so views stay valid while it lives. Tensors of any type are listed; dtype() refuses those it
// cannot read.
class GgufReader {
 public:
  explicit GgufReader(std::shared_ptr<const File> file);
  GgufReader(const GgufReader&) = delete;
  GgufReader& operator=(const GgufReader&) = delete;

  const File& file() const noexcept { return *file_; }
  uint32_t version() const noexcept { return version_; }
  const std::vector<GgufEntry>& metadata() const noexcept { return metadata_; }  // in the file's order
  const std::vector<GgufTensor>& tensors() const noexcept { return tensors_; }
  const GgufEntry* find(std::string_view key) const noexcept;  // null when absent
  const GgufTensor* find_tensor(std::string_view name) const noexcept;

  // A missing key or a value of another kind is corrupt_data, naming file, key and what is there.
  // get_u64 takes every integer type, refusing negative values; get_f64 takes f32 and f64, finite.
  uint64_t get_u64(std::string_view key) const;
  double get_f64(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  std::string_view get_string(std::string_view key) const;
  std::vector<std::string_view> get_strings(std::string_view key) const;
  std::vector<int64_t> get_integers(std::string_view key) const;  // an array of any integer type
  std::vector<double> get_floats(std::string_view key) const;     // an array of f32 or f64
  std::vector<bool> get_bools(std::string_view key) const;        // an array of booleans

  DType dtype(const GgufTensor& tensor) const;  // unsupported for a type that it cannot read, by name
  // Reads bytes [at, at + out.size()) of the tensor; out_of_range beyond its end.
  void read(const GgufTensor& tensor, uint64_t at, std::span<std::byte> out) const;

 private:
  friend class GgufParser;
  const GgufEntry& require(std::string_view key, bool is_array, bool (*fits)(GgufType),
                           const char* wanted) const;
  [[noreturn]] void refuse(const GgufEntry& entry, const char* wanted) const;

  std::shared_ptr<const File> file_;
  std::vector<std::byte> header_;
  uint32_t version_ = 0;
  std::vector<GgufEntry> metadata_;
  std::vector<GgufTensor> tensors_;
  std::vector<uint32_t> entries_by_key_, tensors_by_name_;  // indices, sorted
};

}  // namespace riftco
