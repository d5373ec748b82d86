#include "io/metadata.h"

#include <charconv>

#include "base/error.h"
#include "io/table.h"

namespace riftco {
namespace {

bool read_number(std::string_view text, uint64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

const std::string& required_entry(const SafetensorsReader& reader, const char* key, const char* what) {
  const auto found = reader.metadata().find(std::string_view(key));
  if (found == reader.metadata().end())
    fail(Status::corrupt_data, "%s: not %s: its metadata lacks %s", reader.file().path().c_str(), what, key);
  return found->second;
}

uint64_t number_entry(const SafetensorsReader& reader, const char* key, const char* what, uint64_t largest) {
  const std::string& text = required_entry(reader, key, what);
  uint64_t value = 0;
  if (!read_number(text, value) || value > largest)
    fail(Status::corrupt_data, "%s: %s is %s, not a number up to %llu", reader.file().path().c_str(), key,
         shown(text).c_str(), Count(largest));
  return value;
}

void check_format_version(const SafetensorsReader& reader, const char* key, const char* what,
                          uint32_t newest) {
  const std::string_view text = required_entry(reader, key, what);
  const size_t dot = text.find('.');
  uint64_t major = 0, minor = 0;
  if (dot == text.npos || !read_number(text.substr(0, dot), major) || major == 0 || major > UINT32_MAX ||
      !read_number(text.substr(dot + 1), minor))
    fail(Status::corrupt_data, "%s: %s is %s, not a version", reader.file().path().c_str(), key,
         shown(text).c_str());
  if (major > newest)
    fail(Status::version_mismatch, "%s: %s of format %llu.%llu; this library reads up to format %u",
         reader.file().path().c_str(), what, Count(major), Count(minor), newest);
}

}  // namespace riftco
