#include "text/vocabulary.h"

#include "base/error.h"
#include "text/byte_spelling.h"
#include "text/tokenizer_spec.h"
#include "text/utf8.h"

namespace riftco {

Vocabulary::Vocabulary(const std::vector<std::string>& tokens, std::vector<uint8_t> flags, Spelling spelling)
    : flags_(std::move(flags)), model_tokens_(tokens.size()) {
  const size_t count = tokens.size();
  if (count == 0) fail(Status::corrupt_data, "a vocabulary of 0 tokens");
  if (flags_.size() != count) fail(Status::corrupt_data, "%zu tokens but flags of %zu", count, flags_.size());
  size_t total = 0;
  for (const std::string& token : tokens) total += token.size();
  if (total > UINT32_MAX) fail(Status::corrupt_data, "the tokens have %zu bytes together", total);

  bytes_.bytes.reserve(total);
  bytes_.offsets.reserve(count + 1);
  plain_.resize(count);
  for (uint32_t id = 0; id < count; id++) add(id, tokens[id], spelling);
  bytes_.bytes.shrink_to_fit();
}

void Vocabulary::Strings::add(std::string_view text) {
  bytes += text;
  offsets.push_back(uint32_t(bytes.size()));
}

void Vocabulary::add(uint32_t id, const std::string& token, Spelling spelling) {
  const auto name = [&] { return quoted(token); };
  const uint8_t flags = flags_[id];
  constexpr uint8_t kOfAdded = kSpecialToken | kSingleWord | kStripLeft | kStripRight | kAfterNormalizer;
  if (!is_utf8(token)) fail(Status::corrupt_data, "token %u (%s) is not UTF-8", id, name().c_str());
  if (((flags & kOfAdded) && !(flags & kAddedToken)) || ((flags & kByteToken) && flags != kByteToken))
    fail(Status::corrupt_data, "token %u (%s) has the flags %u", id, name().c_str(), flags);
  if ((flags & kAddedToken) && (token.empty() || token.size() > kMaxAddedTokenBytes))
    fail(Status::corrupt_data, "added token %u (%s) has %zu bytes; 1 to %zu are possible", id, name().c_str(),
         token.size(), kMaxAddedTokenBytes);
  if (spelling == Spelling::byte_level) {
    add_byte_level(id, token);
  } else {
    add_sentence_piece(id, token);
  }
  if (!(flags_[id] & kModelToken)) return;
  const uint32_t twin = model_tokens_.insert(key(id), id, [this](uint32_t other) { return key(other); });
  if (twin != kNoToken) fail(Status::corrupt_data, "tokens %u and %u are both %s", twin, id, name().c_str());
}

void Vocabulary::add_byte_level(uint32_t id, const std::string& token) {
  uint8_t& flags = flags_[id];
  if (flags & kByteToken)
    fail(Status::corrupt_data, "token %u (%s) has the flags %u", id, quoted(token).c_str(), flags);
  const std::optional<std::string> undone = unspell_bytes(token);
  plain_[id] = (flags & kAddedToken) || !undone;
  // An added token stands for its text. When its spelling says other bytes, the text wins.
  if ((flags & kModelToken) && (!undone || undone->empty() || (plain_[id] && *undone != token)))
    flags &= uint8_t(~kModelToken);
  bytes_.add(plain_[id] ? token : *undone);
}

void Vocabulary::add_sentence_piece(uint32_t id, const std::string& token) {
  keys_.add(token);
  if (flags_[id] & kByteToken) {
    const std::optional<uint8_t> byte = named_byte(token);
    if (!byte) fail(Status::corrupt_data, "token %u (%s) names no byte", id, quoted(token).c_str());
    const char c = char(*byte);
    bytes_.add({&c, 1});
  } else {
    if (token.empty()) flags_[id] &= uint8_t(~kModelToken);
    bytes_.add(replace_all(token, kSpaceMark, " "));
  }
}

std::string Vocabulary::spelled(uint32_t id) const {
  if (!keys_.empty()) return std::string(key(id));
  return plain_[id] ? std::string(bytes(id)) : spell_bytes(bytes(id));
}

uint32_t Vocabulary::find_model_token(std::string_view wanted) const noexcept {
  return model_tokens_.find(wanted, [this](uint32_t id) { return key(id); });
}

}  // namespace riftco
