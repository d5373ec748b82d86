#include "text/spec_builder.h"

#include <algorithm>

#include "base/error.h"

namespace riftco {
namespace {

std::string shown(std::string_view text) { return riftco::quoted(text.data(), text.size()); }

}  // namespace

TokenIndex::TokenIndex(const TokenizerSpec& spec, const std::string& where)
    : tokens_(spec.tokens), where_(where), ids_(spec.tokens.size()) {
  for (uint32_t id = 0; id < tokens_.size(); id++) {
    const uint32_t twin =
        ids_.insert(tokens_[id], id, [this](uint32_t other) { return std::string_view(tokens_[other]); });
    if (twin != kNoToken)
      fail(Status::corrupt_data, "%s: tokens %u and %u are both %s", where.c_str(), twin, id,
           riftco::quoted(tokens_[id]).c_str());
  }
}

uint32_t TokenIndex::find(std::string_view spelled) const noexcept {
  return ids_.find(spelled, [this](uint32_t id) { return std::string_view(tokens_[id]); });
}

MergePair TokenIndex::merge(size_t rank, std::string_view left, std::string_view right) const {
  const MergePair pair = {find(left), find(right)};
  if (pair.left == kNoToken || pair.right == kNoToken)
    fail(Status::corrupt_data, "%s: merge %zu names %s, which is not in the vocabulary", where_.c_str(), rank,
         shown(pair.left == kNoToken ? left : right).c_str());
  return pair;
}

MergePair TokenIndex::merge(size_t rank, std::string_view both) const {
  const size_t space = both.find(' ');
  if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos)
    fail(Status::corrupt_data, "%s: merge %zu is %s, not two tokens and a space", where_.c_str(), rank,
         shown(both).c_str());
  return merge(rank, both.substr(0, space), both.substr(space + 1));
}

std::shared_ptr<const Tokenizer> make_tokenizer(const char* kind, TokenizerSpec spec,
                                                const std::string& where) {
  try {
    return std::make_shared<const Tokenizer>(kind, std::move(spec));
  } catch (const Error& error) {
    throw Error(error.status(), where + ": " + error.what());
  }
}

void add_end_of_generation(SpecialTokens& special, uint32_t id) {
  auto& ids = special.end_of_generation;
  if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
}

}  // namespace riftco
