#include "text/spec_builder.h"

#include <algorithm>

#include "base/error.h"

namespace riftco {
namespace {

std::string shown(std::string_view text) { return riftco::quoted(text.data(), text.size()); }

}  // namespace

TokenIndex::TokenIndex(const TokenizerSpec& spec, const std::string& where) : where_(where) {
  ids_.reserve(spec.tokens.size());
  for (uint32_t id = 0; id < spec.tokens.size(); id++) {
    const auto [entry, is_new] = ids_.emplace(spec.tokens[id], id);
    if (!is_new)
      fail(Status::corrupt_data, "%s: tokens %u and %u are both %s", where.c_str(), entry->second, id,
           riftco::quoted(spec.tokens[id]).c_str());
  }
}

const uint32_t* TokenIndex::find(std::string_view spelled) const {
  const auto entry = ids_.find(spelled);
  return entry == ids_.end() ? nullptr : &entry->second;
}

MergePair TokenIndex::merge(size_t rank, std::string_view left, std::string_view right) const {
  const uint32_t *left_id = find(left), *right_id = find(right);
  if (!left_id || !right_id)
    fail(Status::corrupt_data, "%s: merge %zu names %s, which is not in the vocabulary", where_.c_str(), rank,
         shown(left_id ? right : left).c_str());
  return {*left_id, *right_id};
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
