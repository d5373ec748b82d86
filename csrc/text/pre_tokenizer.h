// Cuts text into the pieces that byte-pair encoding never joins.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace riftco {

struct PreTokenizerStage {
  enum Kind : uint8_t {
    digits,        // each digit (any number character) by itself, everything else as it is
    digit_runs,    // digits together
    gpt2,          // contractions, words, numbers, marks, white space
    llama3,        // the same idea with numbers of at most three digits, words with a leading mark, line ends
    qwen2,         // as llama3, with each digit by itself
    tekken,        // as qwen2, with words cut where capitals begin
    space_marks,   // each U+2581 begins a piece
    marked_words,  // each run of U+2581 begins a piece
    pattern,       // what a file says: matches and what is between them
  };
  Kind kind;
  std::string regex = {};  // of `pattern`, in Oniguruma's syntax

  PreTokenizerStage(Kind of_kind, std::string of_pattern = {})
      : kind(of_kind), regex(std::move(of_pattern)) {}
  bool operator==(const PreTokenizerStage&) const = default;
};
const char* stage_name(PreTokenizerStage::Kind kind) noexcept;
PreTokenizerStage stage_from_name(std::string_view name);  // unsupported when there is none
// The stage whose pattern a file spells so, or one of kind `pattern`.
PreTokenizerStage stage_from_regex(const std::string& regex);
// As tokenizer.json has it.
std::string stage_regex(const PreTokenizerStage& stage);

// Each stage cuts further what the one before it left. Without a stage a text is one piece.
class PreTokenizer {
 public:
  explicit PreTokenizer(const std::vector<PreTokenizerStage>& stages);

 private:
  friend class Pieces;
  struct Stage {
    PreTokenizerStage::Kind kind;
    Regex regex;
  };
  std::vector<Stage> stages_;
};

// The pieces of one text after another; the scratch memory of one thread.
class Pieces {
 public:
  Pieces(const PreTokenizer& pre_tokenizer, size_t longest_text);
  void start(std::string_view text);   // which must be UTF-8
  bool next(std::string_view& piece);  // false at the end; pieces are never empty and miss nothing

 private:
  // What a stage cuts: text from `at` on. `match` is the next match of a pattern that was found already.
  struct Level {
    std::string_view text;
    size_t at = 0;
    size_t search_from = 0;
    RegexMatcher::Match match = {};
    bool has_match = false;
    bool done() const noexcept { return at == text.size(); }
  };
  size_t cut(const PreTokenizer::Stage& stage, Level& level);  // where the piece ends that begins at `at`
  size_t cut_by_search(const PreTokenizer::Stage& stage, Level& level);

  const PreTokenizer& pre_tokenizer_;
  RegexMatcher matcher_;
  std::vector<Level> levels_;  // the first: the text; the last holds whole pieces
};

}  // namespace riftco
