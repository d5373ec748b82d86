#include "base/error.h"

#include <cstdarg>
#include <cstdio>

namespace riftco {
namespace {

std::string vformat(const char* fmt, va_list args) {
  va_list again;
  va_copy(again, args);
  const int size = std::vsnprintf(nullptr, 0, fmt, args);
  std::string text(size > 0 ? size_t(size) : 0, '\0');
  if (size > 0) std::vsnprintf(text.data(), text.size() + 1, fmt, again);
  va_end(again);
  return text;
}

}  // namespace

void fail(Status status, const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  std::string message = vformat(fmt, args);
  va_end(args);
  throw Error(status, std::move(message));
}

std::string format(const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  std::string text = vformat(fmt, args);
  va_end(args);
  return text;
}

std::string quoted(const char* data, size_t size) {
  constexpr size_t kShown = 64;
  std::string text = "\"";
  for (size_t i = 0; i < size && i < kShown; i++) {
    const unsigned char c = static_cast<unsigned char>(data[i]);
    if (c == '"' || c == '\\') text += '\\';
    if (c >= 0x20 && c < 0x7F) {
      text += char(c);
    } else {
      text += format("\\x%02x", c);
    }
  }
  text += size > kShown ? "...\"" : "\"";
  return text;
}

}  // namespace riftco
