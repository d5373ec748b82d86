// GPT-2's spelling of bytes: each byte has a printable character that stands for it in vocabulary files
// (a space is U+0120). Only the two-byte range of UTF-8 is needed.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace riftco {

std::string spell_bytes(std::string_view bytes);
// Undoes it; nothing when a character stands for no byte.
std::optional<std::string> unspell_bytes(std::string_view spelled);

}  // namespace riftco
