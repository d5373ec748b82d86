// Named parameters in one buffer, in the device's packed layout: the weights of a model, and whatever has their shape (adapters,
// gradients, moments).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "core/device.h"

namespace riftco {

// One parameter under its native name.
struct ParameterInfo {
  std::string name;
  DType type;     // matrices: as stored; vectors: f32
  uint32_t rows;  // vectors: 1
  uint32_t columns;
  bool is_vector;
};

// Fails with corrupt_data where a value or scale of these rows, of type `type`, is not finite.
void check_finite(const ParameterInfo& p, uint32_t first, uint32_t rows, DType type,
                  const std::byte* file_rows);

class ParameterStore {
 public:
  // All values start at zero. `what` names the memory in errors.
  ParameterStore(const Device& device, std::vector<ParameterInfo> parameters,
                 std::shared_ptr<MemoryAccount> account, const char* what);
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;
  virtual ~ParameterStore() = default;

  const Device& device() const noexcept { return device_; }
  const std::vector<ParameterInfo>& parameters() const noexcept { return parameters_; }
  size_t bytes() const noexcept { return storage_.size(); }

  std::optional<size_t> find(std::string_view name) const noexcept;

  // The packed values of parameter `index`, `packed_bytes(index)` bytes with the padding, which stays zero. Parameters
  // follow each other in the buffer.
  std::byte* data(size_t index) const noexcept { return storage_.data() + offsets_[index]; }
  size_t packed_bytes(size_t index) const noexcept {
    return (index + 1 < offsets_.size() ? offsets_[index + 1] : storage_.size()) - offsets_[index];
  }
  PackedMatrix matrix(size_t index) const noexcept;  // without a bias

  // Rows [first, first + rows) of parameter `index` in file layout (core/dtype.h; vectors: floats). A row of packed
  // blocks is set once; values that are not finite are refused with corrupt_data.
  virtual void set_rows(size_t index, uint32_t first, uint32_t rows, const std::byte* file_rows);

  // The same rows back, bit for bit.
  void get_rows(size_t index, uint32_t first, uint32_t rows, std::byte* file_rows) const;

  // All of it as floats, which hold each value exactly.
  void read_floats(size_t index, float* values) const;

  // What a store of these parameters would hold, in bytes.
  static size_t packed_bytes(const Device& device, const std::vector<ParameterInfo>& parameters);

 protected:
  // Trades values and types with a store of the same names and shapes.
  void swap_storage(ParameterStore& other) noexcept;

 private:
  const Device& device_;
  std::vector<ParameterInfo> parameters_;
  std::vector<size_t> offsets_;  // of each parameter in storage_
  Buffer storage_;
};

}  // namespace riftco
