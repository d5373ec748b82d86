// Finds stop strings in a stream of text and holds back what may still become one.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace riftco {

// The match that ends first wins (the longest of those that end there), so that the result does not depend on
// how the text was cut into pieces.
class StopStrings {
 public:
  static constexpr uint32_t kMaxLength = 1 << 20;  // bytes of a string

  StopStrings() = default;
  explicit StopStrings(std::span<const std::string> strings);  // invalid_argument: an empty one; out_of_range

  // Afterwards push(text) of up to `size` bytes and flush() do not allocate, and so cannot fail.
  void reserve(size_t size, std::string& out);

  // Appends to `out` the text that cannot be part of a stop string any more. True: a stop string is complete;
  // it and all after it is dropped.
  bool push(std::string_view text, std::string& out);

  // Appends what is held back.
  void flush(std::string& out);

 private:
  struct Pattern {
    std::string text;
    std::vector<uint32_t> borders;  // [i]: length of the longest proper prefix of text that ends text[0 .. i]
    uint32_t matched = 0;           // length of the longest prefix that ends the stream
  };
  static void advance(Pattern& pattern, char byte) noexcept;

  std::vector<Pattern> patterns_;
  std::string held_;  // the stream's last bytes, as many as the longest match so far
};

}  // namespace riftco
