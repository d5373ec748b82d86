// Finds tokens that stand in the text as they are, like "<|im_end|>": leftmost first, longest first.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"
#include "text/vocabulary.h"

namespace riftco {

class AddedTokens {
 public:
  struct Pattern {
    std::string text;  // what is searched for
    uint32_t id;
  };
  // Of added tokens of the vocabulary, which must outlive this. corrupt_data for duplicates.
  AddedTokens(const Vocabulary& vocabulary, std::vector<Pattern> patterns);

  uint32_t find(std::string_view text) const noexcept;  // kNoToken when none has exactly this pattern

  // Cuts `text`, in order, into on_token(id) and on_text(what is between, never empty). A special token found
  // where is_plain(begin, end), both places in `text`, stays text, and so does whatever it overlaps.
  template <class IsPlain, class OnText, class OnToken>
  void split(std::string_view text, const IsPlain& is_plain, const OnText& on_text,
             const OnToken& on_token) const {
    size_t done = 0;
    if (!sorted_.empty())
      for (size_t at = 0; at < text.size();) {
        const Pattern* found = match(text.substr(at));
        if (!found) {
          at++;
          continue;
        }
        const uint32_t id = found->id;
        size_t begin = at;
        at += found->text.size();
        size_t end = at;
        if (is_special(id) && is_plain(begin, end)) continue;
        if (!accept(id, text, done, begin, end)) continue;
        if (done < begin) on_text(text.substr(done, begin - done));
        on_token(id);
        done = end;
      }
    if (done < text.size()) on_text(text.substr(done));
  }

 private:
  const Pattern* match(std::string_view text) const noexcept;  // null when none begins here
  // Applies the token's own conditions; widens [begin, end) by the white space that it swallows.
  bool accept(uint32_t id, std::string_view text, size_t done, size_t& begin, size_t& end) const;
  bool is_special(uint32_t id) const noexcept;

  const Vocabulary* vocabulary_;
  std::vector<Pattern> sorted_;       // by text
  std::array<uint32_t, 257> starts_;  // starts_[b]: the first of sorted_ that begins with byte b or above
  std::optional<Regex> word_;         // present when a token asks for word boundaries
};

}  // namespace riftco
