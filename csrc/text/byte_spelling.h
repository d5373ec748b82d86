// GPT-2's spelling of bytes: each byte has a printable character that stands for it in vocabulary files
// (a space is U+0120). Only the two-byte range of UTF-8 is needed.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace riftco {

std::string spell_bytes(std::string_view bytes);
// Undoes it; nothing when a character stands for no byte.
std::optional<std::string> unspell_bytes(std::string_view spelled);

// The byte that a SentencePiece byte token like "<0x0A>" names; nothing when it is no such name.
std::optional<uint8_t> named_byte(std::string_view spelled);
std::string byte_name(uint8_t byte);

}  // namespace riftco
