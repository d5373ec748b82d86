// Cuts text into the pieces that byte-pair encoding never joins.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace riftco {

enum class PreTokenizerStage : uint8_t {
  digits,  // each digit (any number character) by itself, everything else as it is
  gpt2,    // contractions, words, numbers, marks, white space
  llama3,  // the same idea with numbers of at most three digits, words with a leading mark, line ends
};
const char* stage_name(PreTokenizerStage stage) noexcept;
PreTokenizerStage stage_from_name(std::string_view name);  // unsupported when there is none

// Each stage cuts further what the one before it left. Without a stage a text is one piece.
class PreTokenizer {
 public:
  explicit PreTokenizer(std::vector<PreTokenizerStage> stages);
  const std::vector<PreTokenizerStage>& stages() const noexcept { return stages_; }

 private:
  friend class Pieces;
  std::vector<PreTokenizerStage> stages_;
  std::vector<Regex> regexes_;  // one per stage
};

// The pieces of one text after another; the scratch memory of one thread.
class Pieces {
 public:
  Pieces(const PreTokenizer& pre_tokenizer, size_t longest_text);
  void start(std::string_view text);   // which must be UTF-8
  bool next(std::string_view& piece);  // false at the end; pieces are never empty and miss nothing

 private:
  const PreTokenizer& pre_tokenizer_;
  RegexMatcher matcher_;
  std::vector<std::string_view> rest_;  // what each stage has not yet cut; the first: the text
};

}  // namespace riftco
