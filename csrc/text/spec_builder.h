// What the importers share: token names to ids, merges, the special ids.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "text/text_table.h"
#include "text/tokenizer.h"

namespace riftco {

// Looks tokens up by their spelling. Keeps views of spec.tokens, which must not change meanwhile.
class TokenIndex {
 public:
  TokenIndex(const TokenizerSpec& spec, const std::string& where);  // corrupt_data for duplicates
  uint32_t find(std::string_view spelled) const noexcept;           // kNoToken when there is none

  MergePair merge(size_t rank, std::string_view left, std::string_view right) const;
  MergePair merge(size_t rank, std::string_view both) const;  // "left right"

 private:
  const std::vector<std::string>& tokens_;
  const std::string& where_;
  TextTable ids_;
};

// Constructs it; messages about contradicting parts say `where`.
std::shared_ptr<const Tokenizer> make_tokenizer(const char* kind, TokenizerSpec spec,
                                                const std::string& where);

void add_end_of_generation(SpecialTokens& special, uint32_t id);  // unless it is there

}  // namespace riftco
