#include "text/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "text/tokenizer_spec.h"
#include "text/utf8.h"

namespace riftco {
namespace {

// A word character as Unicode's UTS 18 defines it (alphabetic, marks, decimal digits, connectors, joiners).
// Alphabetic is written out, as PCRE2 before 10.40 lacks the property.
constexpr char kWordCharacter[] =
    R"([\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}])";

uint8_t byte_at(std::string_view text, size_t i) noexcept { return static_cast<uint8_t>(text[i]); }

}  // namespace

AddedTokens::AddedTokens(const Vocabulary& vocabulary, std::vector<Pattern> patterns)
    : vocabulary_(&vocabulary), sorted_(std::move(patterns)) {
  std::ranges::sort(sorted_, std::less<>(), &Pattern::text);
  const auto twin = std::ranges::adjacent_find(sorted_, std::equal_to<>(), &Pattern::text);
  if (twin != sorted_.end())
    fail(Status::corrupt_data, "added tokens %u and %u are both %s", twin[0].id, twin[1].id,
         quoted(twin->text).c_str());
  const auto first_byte = [](const Pattern& pattern) { return size_t(byte_at(pattern.text, 0)); };
  for (size_t b = 0; b < starts_.size(); b++)
    starts_[b] = uint32_t(std::ranges::lower_bound(sorted_, b, std::less<>(), first_byte) - sorted_.begin());
  for (const Pattern& pattern : sorted_) {
    if ((vocabulary.flags(pattern.id) & kSingleWord) && !word_) word_.emplace(kWordCharacter);
  }
}

// Narrows the sorted range byte by byte; at each depth the shortest candidate, if exhausted, comes first.
const AddedTokens::Pattern* AddedTokens::match(std::string_view text) const noexcept {
  auto first = sorted_.begin() + starts_[byte_at(text, 0)];
  auto last = sorted_.begin() + starts_[byte_at(text, 0) + 1];
  const Pattern* best = nullptr;
  for (size_t depth = 1; first != last; depth++) {
    if (first->text.size() == depth) best = &*first++;
    if (depth == text.size()) break;
    const auto next_byte = [&](const Pattern& pattern) { return byte_at(pattern.text, depth); };
    // Not std::ranges::equal_range: clang 14 cannot compile subranges of libstdc++.
    first = std::ranges::lower_bound(first, last, byte_at(text, depth), std::less<>(), next_byte);
    last = std::ranges::upper_bound(first, last, byte_at(text, depth), std::less<>(), next_byte);
  }
  return best;
}

uint32_t AddedTokens::find(std::string_view text) const noexcept {
  const Pattern* found = text.empty() ? nullptr : match(text);
  return found && found->text.size() == text.size() ? found->id : kNoToken;
}

bool AddedTokens::is_special(uint32_t id) const noexcept { return vocabulary_->flags(id) & kSpecialToken; }

bool AddedTokens::accept(uint32_t id, std::string_view text, size_t done, size_t& begin, size_t& end) const {
  const uint8_t flags = vocabulary_->flags(id);
  if (flags & kSingleWord) {
    RegexMatcher matcher(4);
    const auto is_word = [&](std::string_view c) {
      return !c.empty() && matcher.match_start(*word_, c) != 0;
    };
    const std::string_view after = text.substr(end);
    const size_t after_size =
        after.empty() || !first_character(after).is_whole ? 0 : first_character(after).length;
    if (is_word(last_character(text.substr(0, begin))) || is_word(after.substr(0, after_size))) return false;
  }
  if (flags & kStripLeft) {
    while (begin > done) {
      const std::string_view c = last_character(text.substr(0, begin));
      if (c.empty() || !is_white_space(first_character(c).code)) break;
      begin -= c.size();
    }
    begin = std::max(begin, done);
  }
  if (flags & kStripRight) {
    while (end < text.size()) {
      const Utf8Character c = first_character(text.substr(end));
      if (!c.is_whole || !is_white_space(c.code)) break;
      end += c.length;
    }
  }
  return true;
}

}  // namespace riftco
