#include "text/byte_spelling.h"

#include <array>
#include <charconv>
#include <cstdint>

#include "text/utf8.h"

namespace riftco {
namespace {

constexpr bool is_printable(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD && byte <= 0xFF);
}

// Printable bytes stand for themselves, the other 68 are numbered from U+0100 on.
constexpr uint32_t kCodes = 0x100 + 68;
struct Spelling {
  std::array<uint16_t, 256> code_of_byte{};
  std::array<int16_t, kCodes> byte_of_code{};
};
constexpr Spelling make_spelling() {
  Spelling s;
  for (int16_t& byte : s.byte_of_code) byte = -1;
  uint16_t next = 0x100;
  for (uint16_t byte = 0; byte < 256; byte++) {
    s.code_of_byte[byte] = is_printable(byte) ? byte : next++;
    s.byte_of_code[s.code_of_byte[byte]] = int16_t(byte);
  }
  return s;
}
constexpr Spelling kSpelling = make_spelling();

}  // namespace

std::string spell_bytes(std::string_view bytes) {
  std::string spelled;
  for (const char c : bytes) append_utf8(spelled, kSpelling.code_of_byte[static_cast<uint8_t>(c)]);
  return spelled;
}

std::optional<std::string> unspell_bytes(std::string_view spelled) {
  std::string bytes;
  while (!spelled.empty()) {
    const Utf8Character c = first_character(spelled);
    if (!c.is_whole || c.code >= kCodes || kSpelling.byte_of_code[c.code] < 0) return std::nullopt;
    bytes += char(kSpelling.byte_of_code[c.code]);
    spelled.remove_prefix(c.length);
  }
  return bytes;
}

std::optional<uint8_t> named_byte(std::string_view spelled) {
  if (spelled.size() != 6 || !spelled.starts_with("<0x") || spelled[5] != '>') return std::nullopt;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(spelled.data() + 3, spelled.data() + 5, byte, 16);
  if (error != std::errc() || end != spelled.data() + 5 || byte_name(byte) != spelled) return std::nullopt;
  return byte;
}

std::string byte_name(uint8_t byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + '>';
}

}  // namespace riftco
