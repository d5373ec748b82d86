#include "text/pre_tokenizer.h"

#include <utility>

#include "base/error.h"

namespace riftco {
namespace {

// White_Space, written out because \s of PCRE2 is another set. For use inside a character class.
#define SPACE \
  R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})"

struct StageInfo {
  const char* name;
  const char* pattern;  // matches at every position of every text
};
constexpr StageInfo kStages[] = {
    {"digits", R"(\p{N}|\P{N}+)"},
    {"gpt2", R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^)" SPACE R"(\p{L}\p{N}]+|)"
             "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"},
    {"llama3", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^)" SPACE
               R"(\p{L}\p{N}]+[\r\n]*|)"
               "[" SPACE R"(]*[\r\n]+|)"
               "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"},
};
#undef SPACE

const StageInfo& info(PreTokenizerStage stage) noexcept { return kStages[size_t(stage)]; }

}  // namespace

const char* stage_name(PreTokenizerStage stage) noexcept { return info(stage).name; }

PreTokenizerStage stage_from_name(std::string_view name) {
  for (size_t i = 0; i < std::size(kStages); i++)
    if (name == kStages[i].name) return PreTokenizerStage(i);
  fail(Status::unsupported, "there is no pre-tokenizer stage named %s",
       quoted(name.data(), name.size()).c_str());
}

PreTokenizer::PreTokenizer(std::vector<PreTokenizerStage> stages) : stages_(std::move(stages)) {
  for (const PreTokenizerStage stage : stages_) regexes_.emplace_back(info(stage).pattern);
}

Pieces::Pieces(const PreTokenizer& pre_tokenizer, size_t longest_text)
    : pre_tokenizer_(pre_tokenizer), matcher_(longest_text), rest_(pre_tokenizer.stages_.size() + 1) {}

void Pieces::start(std::string_view text) {
  for (std::string_view& rest : rest_) rest = {};
  rest_[0] = text;
}

bool Pieces::next(std::string_view& piece) {
  size_t level = rest_.size() - 1;  // the finest cut that has text left
  while (rest_[level].empty())
    if (level-- == 0) return false;
  for (; level + 1 < rest_.size(); level++) {
    const size_t size = matcher_.match_start(pre_tokenizer_.regexes_[level], rest_[level]);
    if (size == 0) fail(Status::internal, "stage %s cuts nothing", stage_name(pre_tokenizer_.stages_[level]));
    rest_[level + 1] = rest_[level].substr(0, size);
    rest_[level].remove_prefix(size);
  }
  piece = std::exchange(rest_[level], {});
  return true;
}

}  // namespace riftco
