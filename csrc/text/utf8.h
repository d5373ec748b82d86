// UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace riftco {

struct Utf8Character {
  uint32_t code;   // meaningful when whole
  uint8_t length;  // bytes looked at that belong together: a whole character, or the start of one
  bool is_whole;   // else: a byte that starts nothing (length 0), or a start that stops too early
};
// The character that `text`, which is not empty, begins with.
Utf8Character first_character(std::string_view text) noexcept;

size_t valid_utf8_prefix(std::string_view text) noexcept;  // bytes up to the first that is not UTF-8
inline bool is_utf8(std::string_view text) noexcept { return valid_utf8_prefix(text) == text.size(); }

// Bytes (0 to 3) at the end that start a character which further bytes could complete.
size_t incomplete_tail(std::string_view text) noexcept;

// The last character of `text` as bytes; empty when the text is empty or does not end in a whole one.
std::string_view last_character(std::string_view text) noexcept;

bool is_white_space(uint32_t code) noexcept;  // Unicode's White_Space

void append_utf8(std::string& text, uint32_t code);

}  // namespace riftco
