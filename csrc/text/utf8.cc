#include "text/utf8.h"

#include <algorithm>
#include <cstring>

namespace riftco {
namespace {

uint8_t byte_at(std::string_view text, size_t i) noexcept { return static_cast<uint8_t>(text[i]); }

}  // namespace

Utf8Character first_character(std::string_view text) noexcept {
  const uint8_t lead = byte_at(text, 0);
  if (lead < 0x80) return {lead, 1, true};
  if (lead < 0xC2 || lead > 0xF4) return {0, 0, false};
  const uint8_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range keeps out overlong forms, surrogates and what is above U+10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  uint32_t code = lead & (0xFFu >> (size + 1));
  for (uint8_t i = 1; i < size; i++) {
    if (i >= text.size()) return {0, i, false};
    const uint8_t next = byte_at(text, i);
    if (i == 1 ? next < low || next > high : (next & 0xC0) != 0x80) return {0, i, false};
    code = code << 6 | (next & 0x3F);
  }
  return {code, size, true};
}

size_t valid_utf8_prefix(std::string_view text) noexcept {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const Utf8Character c = first_character(text.substr(at));
    if (!c.is_whole) return at;
    at += c.length;
  }
  return at;
}

size_t incomplete_tail(std::string_view text) noexcept {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); back++) {
    if ((byte_at(text, text.size() - back) & 0xC0) == 0x80) continue;
    const Utf8Character c = first_character(text.substr(text.size() - back));
    return !c.is_whole && c.length == back ? back : 0;
  }
  return 0;
}

std::string_view last_character(std::string_view text) noexcept {
  for (size_t back = 1; back <= std::min<size_t>(4, text.size()); back++) {
    if ((byte_at(text, text.size() - back) & 0xC0) == 0x80) continue;
    const std::string_view tail = text.substr(text.size() - back);
    const Utf8Character c = first_character(tail);
    return c.is_whole && c.length == back ? tail : std::string_view();
  }
  return {};
}

bool is_white_space(uint32_t code) noexcept {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

void append_utf8(std::string& text, uint32_t code) {
  if (code < 0x80) {
    text += char(code);
  } else if (code < 0x800) {
    text += char(0xC0 | code >> 6);
    text += char(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    text += char(0xE0 | code >> 12);
    text += char(0x80 | (code >> 6 & 0x3F));
    text += char(0x80 | (code & 0x3F));
  } else {
    text += char(0xF0 | code >> 18);
    text += char(0x80 | (code >> 12 & 0x3F));
    text += char(0x80 | (code >> 6 & 0x3F));
    text += char(0x80 | (code & 0x3F));
  }
}

}  // namespace riftco
