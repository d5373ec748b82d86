// Errors: one exception type carrying a status of the C ABI and a message with the values in it.
#pragma once
#include <cstdint>
#include <exception>
#include <string>

namespace riftco {

// Numbers are those of rt_status (include/riftco/base.h) and are never reused.
enum class Status : int32_t {
  ok = 0,
  invalid_argument = 1,
  out_of_range = 2,
  overflow = 3,
  backend_unavailable = 4,
  out_of_memory = 5,
  runtime_error = 6,
  buffer_too_small = 7,
  context_full = 8,
  cache_exhausted = 9,
  invalid_state = 10,
  unsupported = 11,
  corrupt_data = 12,
  input_output = 13,
  cancelled = 14,
  deadline = 15,
  busy = 16,
  queue_full = 17,
  version_mismatch = 18,
  non_finite = 19,
  internal = 255,
};

class Error : public std::exception {
 public:
  Error(Status status, std::string message) : status_(status), message_(std::move(message)) {}
  Status status() const noexcept { return status_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  Status status_;
  std::string message_;
};

// Throws Error with a printf-style message.
[[noreturn]] void fail(Status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// A printf-style string; for messages and JSON pieces.
std::string format(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Text from a file or caller, made safe for a message: at most 64 bytes, control and non-ASCII bytes as \xNN.
std::string quoted(const char* data, size_t size);
inline std::string quoted(const std::string& text) { return quoted(text.data(), text.size()); }

}  // namespace riftco
