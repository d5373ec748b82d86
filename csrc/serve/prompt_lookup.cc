#include "serve/prompt_lookup.h"

#include <algorithm>
#include <bit>

namespace riftco {
namespace {

constexpr size_t kShortestRun = 2, kLongestRun = 4;  // tokens that a text must end with to be known again
constexpr uint32_t kMaxMisses = 6;                   // pauses are at most 2^(kMaxMisses - 1) - 1 calls

// From the last token of a run to its first.
uint64_t extend_hash(uint64_t hash, uint32_t token) noexcept {
  return (std::rotl(hash, 23) ^ (token + 1)) * 0x9E3779B97F4A7C15u;
}

}  // namespace

PromptLookup::PromptLookup(uint32_t longest, uint64_t tokens) : longest_(longest) {
  constexpr uint64_t kSlotsPerToken = 4, kLeast = 64;  // there are three runs for each token
  slots_.resize(std::bit_ceil(std::max(kLeast, kSlotsPerToken * tokens)));
  shift_ = 64 - std::countr_zero(slots_.size());
}

// The runs that `end` follows.
void PromptLookup::remember(std::span<const uint32_t> text, size_t end) noexcept {
  uint64_t hash = 0;
  for (size_t n = 1; n <= std::min(kLongestRun, end); ++n) {
    hash = extend_hash(hash, text[end - n]);
    if (n >= kShortestRun) slot(hash) = uint32_t(end);
  }
}

// What followed the longest run that the text ends with and that was there before; 0: none was.
size_t PromptLookup::find(std::span<const uint32_t> text) noexcept {
  size_t found = 0;
  uint64_t hash = 0;
  for (size_t n = 1; n <= std::min(kLongestRun, text.size()); ++n) {
    hash = extend_hash(hash, text[text.size() - n]);
    if (n < kShortestRun) continue;
    const size_t at = slot(hash);  // maybe of another run with this slot
    if (at >= n && std::equal(text.end() - ptrdiff_t(n), text.end(), text.begin() + ptrdiff_t(at - n)))
      found = at;
  }
  return found;
}

void PromptLookup::guess(std::span<const uint32_t> text, uint64_t room, std::vector<uint32_t>& out) {
  if (longest_ == 0) return;
  for (; remembered_ < text.size(); ++remembered_) remember(text, remembered_);
  if (pause_ > 0) {
    pause_--;
    return;
  }
  const size_t from = find(text);
  if (from == 0) return;
  const size_t first = out.size(), count = size_t(std::min<uint64_t>(length_, room));
  for (size_t i = from; i < from + count;
       ++i)  // a repetition that reaches the text's end goes on in the guess
    out.push_back(i < text.size() ? text[i] : out[first + i - text.size()]);
}

void PromptLookup::learn(size_t guessed, size_t right) noexcept {
  if (guessed == 0) return;
  if (right == guessed) {
    length_ = std::min(2 * length_, longest_);
  } else {
    length_ = std::max(1u, uint32_t(right));
  }
  misses_ = right > 0 ? 0 : std::min(misses_ + 1, kMaxMisses);
  pause_ = misses_ > 0 ? (1u << (misses_ - 1)) - 1 : 0;
}

}  // namespace riftco
