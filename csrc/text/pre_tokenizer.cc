#include "text/pre_tokenizer.h"

#include <utility>

#include "base/error.h"
#include "text/utf8.h"

namespace riftco {
namespace {

// White_Space, written out because \s of PCRE2 is another set. For use inside a character class.
#define SPACE \
  R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})"

// Words of tekken: capitals and small letters, marks in either.
#define UPPER R"(\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M})"
#define LOWER R"(\p{Ll}\p{Lm}\p{Lo}\p{M})"
#define LLAMA3(word, number, line_end)                                      \
  word "|" number R"(| ?[^)" SPACE R"(\p{L}\p{N}]+[\r\n)" line_end R"(]*|)" \
       "[" SPACE R"(]*[\r\n]+|)"                                            \
       "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"
#define CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|)"
#define LEADING R"([^\r\n\p{L}\p{N}]?)"

// The same patterns as files spell them.
#define FILE_LLAMA3(word, number, line_end) \
  word "|" number R"(| ?[^\s\p{L}\p{N}]+[\r\n)" line_end R"(]*|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define TEKKEN_WORDS LEADING "[" UPPER "]*[" LOWER "]+|" LEADING "[" UPPER "]+[" LOWER "]*"

struct StageInfo {
  const char* name;
  const char* pattern;  // matches at every position of every text
  const char* in_files;
};
constexpr StageInfo kStages[] = {
    {"digits", R"(\p{N}|\P{N}+)", R"(\p{N})"},
    {"digit_runs", R"(\p{N}+|\P{N}+)", R"(\p{N}+)"},
    {"gpt2",
     R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^)" SPACE R"(\p{L}\p{N}]+|)"
     "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+",
     R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {"llama3", LLAMA3(CONTRACTIONS LEADING R"(\p{L}+)", R"(\p{N}{1,3})", ""),
     FILE_LLAMA3(CONTRACTIONS LEADING R"(\p{L}+)", R"(\p{N}{1,3})", "")},
    {"qwen2", LLAMA3(CONTRACTIONS LEADING R"(\p{L}+)", R"(\p{N})", ""),
     FILE_LLAMA3(CONTRACTIONS LEADING R"(\p{L}+)", R"(\p{N})", "")},
    {"tekken", LLAMA3(TEKKEN_WORDS, R"(\p{N})", "/"), FILE_LLAMA3(TEKKEN_WORDS, R"(\p{N})", "/")},
    {"space_marks", R"(\x{2581}?[^\x{2581}]+|\x{2581})", ""},
    {"marked_words", R"(\x{2581}*[^\x{2581}]+|\x{2581}+)", ""},
    {"pattern", "", ""},
};
#undef SPACE

#undef UPPER
#undef LOWER
#undef LLAMA3
#undef CONTRACTIONS
#undef LEADING
#undef FILE_LLAMA3
#undef TEKKEN_WORDS

// The other spelling of gpt2.
constexpr char kOldGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

const StageInfo& info(PreTokenizerStage::Kind kind) noexcept { return kStages[size_t(kind)]; }

}  // namespace

const char* stage_name(PreTokenizerStage::Kind kind) noexcept { return info(kind).name; }

PreTokenizerStage stage_from_name(std::string_view name) {
  for (size_t i = 0; i < PreTokenizerStage::pattern; i++)
    if (name == kStages[i].name) return PreTokenizerStage::Kind(i);
  fail(Status::unsupported, "there is no pre-tokenizer stage named %s",
       quoted(name.data(), name.size()).c_str());
}

PreTokenizerStage stage_from_regex(const std::string& regex) {
  if (regex == kOldGpt2) return PreTokenizerStage::gpt2;
  for (size_t i = 0; i < PreTokenizerStage::space_marks; i++)
    if (regex == kStages[i].in_files) return PreTokenizerStage::Kind(i);
  return {PreTokenizerStage::pattern, regex};
}

std::string stage_regex(const PreTokenizerStage& stage) {
  return stage.kind == PreTokenizerStage::pattern ? stage.regex : info(stage.kind).in_files;
}

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStage>& stages) {
  for (const PreTokenizerStage& stage : stages)
    stages_.push_back({stage.kind, stage.kind == PreTokenizerStage::pattern
                                       ? Regex::from_file(stage.regex)
                                       : Regex(info(stage.kind).pattern)});
}

Pieces::Pieces(const PreTokenizer& pre_tokenizer, size_t longest_text)
    : pre_tokenizer_(pre_tokenizer), matcher_(longest_text), levels_(pre_tokenizer.stages_.size() + 1) {}

void Pieces::start(std::string_view text) {
  for (Level& level : levels_) level = {};
  levels_[0].text = text;
}

bool Pieces::next(std::string_view& piece) {
  size_t depth = levels_.size() - 1;  // the finest cut that has text left
  while (levels_[depth].done())
    if (depth-- == 0) return false;
  for (; depth + 1 < levels_.size(); depth++) {
    Level& level = levels_[depth];
    const size_t begin = level.at;
    level.at = cut(pre_tokenizer_.stages_[depth], level);
    levels_[depth + 1] = {.text = level.text.substr(begin, level.at - begin)};
  }
  Level& last = levels_[depth];
  piece = last.text.substr(last.at);
  last.at = last.text.size();
  return true;
}

size_t Pieces::cut(const PreTokenizer::Stage& stage, Level& level) {
  if (stage.kind == PreTokenizerStage::pattern) return cut_by_search(stage, level);
  const size_t size = matcher_.match_start(stage.regex, level.text.substr(level.at));
  if (size == 0) fail(Status::internal, "stage %s cuts nothing", stage_name(stage.kind));
  return level.at + size;
}

// Pieces are the matches and what lies between; a match of nothing is a cut.
size_t Pieces::cut_by_search(const PreTokenizer::Stage& stage, Level& level) {
  for (;;) {
    if (!level.has_match) {
      level.match = matcher_.search(stage.regex, level.text, level.search_from);
      level.has_match = true;
    }
    const RegexMatcher::Match match = level.match;
    if (level.at < match.begin) return match.begin;
    level.has_match = false;
    level.search_from = match.end;
    if (match.end > level.at) return match.end;
    level.search_from += first_character(level.text.substr(match.end)).length;
  }
}

}  // namespace riftco
