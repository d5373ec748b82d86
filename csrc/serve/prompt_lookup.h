// Guesses how a text goes on: as it did the last time that it ended like this (prompt lookup decoding, Saxena 2023).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace riftco {

class PromptLookup {
 public:
  static constexpr uint32_t kMaxGuess = 64;

  PromptLookup() = default;  // guesses nothing

  // Guesses of up to `longest` tokens. `tokens`: about how long the text gets; what a longer one said at first is
  // forgotten.
  PromptLookup(uint32_t longest, uint64_t tokens);

  // Appends a guess of the tokens after `text`, at most `room`, maybe none. Between calls the text grows at its end only.
  // Allocates nothing where `out` has the capacity; constant time for each new token.
  void guess(std::span<const uint32_t> text, uint64_t room, std::vector<uint32_t>& out);

  // How many tokens of a guess there were and how many of them, from the first on, came true. Guesses get longer while they
  // come true, shorter and rarer while they do not, because decoding a token in vain costs a part of a step.
  void learn(size_t guessed, size_t right) noexcept;

 private:
  void remember(std::span<const uint32_t> text, size_t end) noexcept;
  uint32_t& slot(uint64_t hash) noexcept { return slots_[hash >> shift_]; }
  size_t find(std::span<const uint32_t> text) noexcept;

  uint32_t longest_ = 0;
  uint32_t length_ = 1;  // of the next guess
  uint32_t misses_ = 0;  // guesses in a row of which nothing came true
  uint32_t pause_ = 0;   // calls without a guess to come
  std::vector<uint32_t>
      slots_;      // where a run of tokens was followed, by the run's hash; the newest one; 0: nowhere
  int shift_ = 0;  // of a hash to its slot
  size_t remembered_ = 0;  // all runs that end before this token are in slots_
};

}  // namespace riftco
