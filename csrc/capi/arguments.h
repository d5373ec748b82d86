// Checks of arguments: texts, arrays, flags, and structs that grow at their end.
#pragma once
#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string_view>

#include "base/error.h"

namespace riftco::capi {

inline constexpr uint64_t kMaxStructSize = 4096;

// --- inputs ---

template <class T>
std::span<const T> array_argument(const T* data, uint64_t count, const char* name) {
  if (!data && count > 0) fail(Status::invalid_argument, "%s is NULL but its count is %" PRIu64, name, count);
  if (count > PTRDIFF_MAX / sizeof(T))
    fail(Status::overflow, "%s: a count of %" PRIu64 " does not fit into memory", name, count);
  return {data, size_t(count)};
}

inline std::string_view text_argument(const char* data, uint64_t size, const char* name) {
  const std::span<const char> bytes = array_argument(data, size, name);
  return {bytes.data(), bytes.size()};
}

template <class T>
T& output_argument(T* output, const char* name) {
  if (!output) fail(Status::invalid_argument, "%s is NULL", name);
  return *output;
}

inline bool flag_argument(uint32_t value, const char* name) {
  if (value > 1) fail(Status::invalid_argument, "%s is %u, neither 0 nor 1", name, value);
  return value == 1;
}

// One of the numbers 0 .. last of an enum.
template <class E>
E choice_argument(int32_t value, int32_t last, const char* name) {
  if (value < 0 || value > last)
    fail(Status::invalid_argument, "%s is %d, not one of 0 to %d", name, value, last);
  return E(value);
}

inline void check_reserved(uint64_t value, const char* name) {
  if (value != 0) fail(Status::invalid_argument, "%s is %" PRIu64 ", must be 0", name, value);
}

// --- variable-size outputs ---

template <class T>
void check_output(const T* data, uint64_t capacity, const uint64_t* required, const char* name) {
  if (!data && capacity > 0)
    fail(Status::invalid_argument, "%s is NULL but its capacity is %" PRIu64, name, capacity);
  if (!required) fail(Status::invalid_argument, "required is NULL");
}

inline void check_capacity(uint64_t capacity, uint64_t required, const char* name) {
  if (capacity < required)
    fail(Status::buffer_too_small, "%s: a capacity of %" PRIu64 " is below the %" PRIu64 " required", name,
         capacity, required);
}

// After check_output: sets *required and copies, unless it is a size query.
template <class T>
void write_output(std::span<const T> values, T* data, uint64_t capacity, uint64_t* required,
                  const char* name) {
  *required = values.size();
  if (!data) return;
  check_capacity(capacity, values.size(), name);
  std::copy(values.begin(), values.end(), data);
}

// --- structs ---

// Where a struct may end: after its first release, and after each field that was added later. Specialise it
// for a struct that has grown.
template <class T>
struct StructEnds {
  static constexpr uint64_t values[] = {sizeof(T)};
};

template <class T>
void check_struct_size(uint64_t size, const char* name) {
  const auto& ends = StructEnds<T>::values;
  if (size < ends[0])
    fail(Status::invalid_argument, "%s.struct_size %" PRIu64 " is below %" PRIu64, name, size, ends[0]);
  if (size > kMaxStructSize)
    fail(Status::invalid_argument, "%s.struct_size %" PRIu64 " is above %" PRIu64, name, size,
         kMaxStructSize);
  if (size < sizeof(T) && std::find(std::begin(ends), std::end(ends), size) == std::end(ends))
    fail(Status::invalid_argument, "%s.struct_size %" PRIu64 " ends inside a field", name, size);
}

// A complete copy of the caller's struct: `defaults` where it is NULL or ends early.
template <class T>
T read_struct(const T* input, const T& defaults, const char* name) {
  if (!input) return defaults;
  uint64_t size;
  std::memcpy(&size, input, sizeof size);
  check_struct_size<T>(size, name);
  const std::byte* bytes = reinterpret_cast<const std::byte*>(input);
  for (uint64_t i = sizeof(T); i < size; i++) {
    if (bytes[i] != std::byte{0})
      fail(Status::invalid_argument, "%s has a value at byte %" PRIu64 " that this library does not know",
           name, i);
  }
  T value = defaults;
  std::memcpy(&value, bytes, size_t(std::min<uint64_t>(size, sizeof(T))));
  value.struct_size = sizeof(T);
  return value;
}

// A struct that the caller lets the library fill; checked before the work.
template <class T>
class OutputStruct {
 public:
  OutputStruct(T* output, const char* name) : output_(output) {
    if (!output) fail(Status::invalid_argument, "%s is NULL", name);
    std::memcpy(&size_, output, sizeof size_);
    check_struct_size<T>(size_, name);
  }

  // Fills what both sides know, zeroes the rest and leaves struct_size.
  void write(T value) const noexcept {
    value.struct_size = size_;
    const size_t known = size_t(std::min<uint64_t>(size_, sizeof(T)));
    std::byte* bytes = reinterpret_cast<std::byte*>(output_);
    std::memcpy(bytes, &value, known);
    std::memset(bytes + known, 0, size_t(size_) - known);
  }

 private:
  T* output_;
  uint64_t size_ = 0;
};

// Fills the first `size` bytes of a struct of any release with its defaults: the body of rt_*_init.
template <class T>
void init_struct(T* output, uint64_t size, const T& defaults, const char* name) {
  if (!output) fail(Status::invalid_argument, "%s is NULL", name);
  check_struct_size<T>(size, name);
  std::memcpy(static_cast<void*>(output), &size, sizeof size);
  OutputStruct<T>(output, name).write(defaults);
}

}  // namespace riftco::capi
