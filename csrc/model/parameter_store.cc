#include "model/parameter_store.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace riftco {
namespace {

constexpr size_t kLine = 64;

size_t bytes_of(const Device& device, const ParameterInfo& p) {
  const size_t bytes =
      p.is_vector ? 4 * size_t(p.columns) : device.kernels->packed_bytes(p.type, p.rows, p.columns);
  return (bytes + kLine - 1) / kLine * kLine;
}

void check_range(const ParameterInfo& p, uint32_t first, uint32_t rows) {
  if (first > p.rows || rows > p.rows - first)
    fail(Status::out_of_range, "rows %u + %u exceed the %u rows of %s", first, rows, p.rows, p.name.c_str());
}

}  // namespace

void check_finite(const ParameterInfo& p, uint32_t first, uint32_t rows, DType type,
                  const std::byte* file_rows) {
  const size_t stride = row_bytes(type, p.columns);
  for (uint32_t r = 0; r < rows; r++)
    if (!row_is_finite(type, file_rows + r * stride, p.columns))
      fail(Status::corrupt_data, "row %u of %s has a value or scale that is not finite", first + r,
           p.name.c_str());
}

ParameterStore::ParameterStore(const Device& device, std::vector<ParameterInfo> parameters,
                               std::shared_ptr<MemoryAccount> account, const char* what)
    : device_(device), parameters_(std::move(parameters)) {
  size_t size = 0;
  offsets_.reserve(parameters_.size());
  for (const ParameterInfo& p : parameters_) {
    offsets_.push_back(size);
    if (!p.is_vector) row_bytes(p.type, p.columns);  // whole blocks
    if (__builtin_add_overflow(size, bytes_of(device, p), &size))
      fail(Status::overflow, "%s exceed the address space at %s", what, p.name.c_str());
  }
  storage_ = Buffer(std::move(account), size, what, Pages::huge);
}

size_t ParameterStore::packed_bytes(const Device& device, const std::vector<ParameterInfo>& parameters) {
  size_t size = 0;
  for (const ParameterInfo& p : parameters)
    if (__builtin_add_overflow(size, bytes_of(device, p), &size))
      fail(Status::overflow, "the parameters exceed the address space");
  return size;
}

void ParameterStore::swap_storage(ParameterStore& other) noexcept {
  for (size_t i = 0; i < parameters_.size(); i++) std::swap(parameters_[i].type, other.parameters_[i].type);
  offsets_.swap(other.offsets_);
  std::swap(storage_, other.storage_);
}

std::optional<size_t> ParameterStore::find(std::string_view name) const noexcept {
  const auto it = std::ranges::find(parameters_, name, &ParameterInfo::name);
  if (it == parameters_.end()) return std::nullopt;
  return size_t(it - parameters_.begin());
}

PackedMatrix ParameterStore::matrix(size_t index) const noexcept {
  const ParameterInfo& p = parameters_[index];
  return {.type = p.type, .outputs = p.rows, .inputs = p.columns, .data = data(index)};
}

void ParameterStore::set_rows(size_t index, uint32_t first, uint32_t rows, const std::byte* file_rows) {
  const ParameterInfo& p = parameters_.at(index);
  check_range(p, first, rows);
  check_finite(p, first, rows, p.type, file_rows);
  if (p.is_vector) {
    std::memcpy(data(index), file_rows, rows * row_bytes(p.type, p.columns));
  } else {
    device_.kernels->pack_rows(matrix(index), first, rows, file_rows);
  }
}

void ParameterStore::get_rows(size_t index, uint32_t first, uint32_t rows, std::byte* file_rows) const {
  const ParameterInfo& p = parameters_.at(index);
  check_range(p, first, rows);
  if (p.is_vector) {
    std::memcpy(file_rows, data(index), rows * row_bytes(p.type, p.columns));
  } else {
    device_.kernels->unpack_rows(matrix(index), first, rows, file_rows);
  }
}

void ParameterStore::read_floats(size_t index, float* values) const {
  const ParameterInfo& p = parameters_.at(index);
  std::vector<std::byte> row(row_bytes(p.type, p.columns));
  for (uint32_t r = 0; r < p.rows; r++) {
    get_rows(index, r, 1, row.data());
    dequantise(p.type, row.data(), {values + size_t(r) * p.columns, p.columns});
  }
}

}  // namespace riftco
