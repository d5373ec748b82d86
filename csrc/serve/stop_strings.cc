#include "serve/stop_strings.h"

#include <algorithm>

#include "base/error.h"

namespace riftco {

StopStrings::StopStrings(std::span<const std::string> strings) {
  patterns_.reserve(strings.size());
  for (size_t s = 0; s < strings.size(); ++s) {
    const std::string& text = strings[s];
    if (text.empty()) fail(Status::invalid_argument, "stop string %zu is empty", s);
    if (text.size() > kMaxLength)
      fail(Status::out_of_range, "stop string %zu has %zu bytes, more than %u", s, text.size(), kMaxLength);
    Pattern pattern{text, std::vector<uint32_t>(text.size()), 0};
    for (size_t i = 1; i < text.size(); ++i) {
      advance(pattern, text[i]);  // the pattern's own text, from its second byte on, gives its borders
      pattern.borders[i] = pattern.matched;
    }
    pattern.matched = 0;
    patterns_.push_back(std::move(pattern));
  }
}

void StopStrings::advance(Pattern& pattern, char byte) noexcept {
  uint32_t& matched = pattern.matched;
  while (matched > 0 && pattern.text[matched] != byte) matched = pattern.borders[matched - 1];
  if (pattern.text[matched] == byte) matched++;
}

void StopStrings::reserve(size_t size, std::string& out) {
  held_.reserve(held_.size() + size);
  out.reserve(out.size() + held_.size() + size);
}

bool StopStrings::push(std::string_view text, std::string& out) {
  for (char byte : text) {
    held_ += byte;
    uint32_t complete = 0;
    for (Pattern& pattern : patterns_) {
      advance(pattern, byte);
      if (pattern.matched == pattern.text.size()) complete = std::max(complete, pattern.matched);
    }
    if (complete) {
      out.append(held_, 0, held_.size() - complete);
      held_.clear();
      return true;
    }
  }
  uint32_t longest = 0;
  for (const Pattern& pattern : patterns_) longest = std::max(longest, pattern.matched);
  out.append(held_, 0, held_.size() - longest);
  held_.erase(0, held_.size() - longest);
  return false;
}

void StopStrings::flush(std::string& out) {
  out += held_;
  held_.clear();
  for (Pattern& pattern : patterns_) pattern.matched = 0;
}

}  // namespace riftco
