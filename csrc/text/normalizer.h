// What happens to text before it is cut into pieces: Unicode composition, spaces that become U+2581.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace riftco {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, SentencePiece's visible space

struct NormalizerStep {
  enum class Kind : uint8_t {
    nfc,      // canonical composition
    prepend,  // puts `to` before text that is not empty
    replace,  // `from` becomes `to`
  };
  Kind kind;
  std::string from = {}, to = {};
  bool operator==(const NormalizerStep&) const = default;
};

// Spaces become U+2581, and one more of it begins the text unless it begins with one already.
enum class SpacePrefix : uint8_t {
  none,   // spaces stay spaces
  never,  // but none is added
  first,  // where the whole text begins
  every,  // where each stretch between added tokens begins
};

// The steps in order; bytes that are not UTF-8 stay as they are.
std::string normalize(const std::vector<NormalizerStep>& steps, std::string_view text);

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

}  // namespace riftco
