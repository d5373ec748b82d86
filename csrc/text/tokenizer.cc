#include "text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "text/byte_spelling.h"
#include "text/text_encoder.h"
#include "text/utf8.h"

namespace riftco {
namespace {

// The added tokens of one of the two passes.
std::vector<uint32_t> added_ids(const Vocabulary& vocabulary, uint8_t pass) {
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < vocabulary.size(); id++)
    if ((vocabulary.flags(id) & (kAddedToken | kAfterNormalizer)) == (kAddedToken | pass)) ids.push_back(id);
  return ids;
}

void check_id(const char* what, uint32_t id, uint32_t size) {
  if (id >= size)
    fail(Status::corrupt_data, "the %s token is %u, but the vocabulary has %u tokens", what, id, size);
}

}  // namespace

Tokenizer::Tokenizer(std::string kind, TokenizerSpec spec)
    : kind_(std::move(kind)),
      vocabulary_(spec.tokens, std::move(spec.flags)),
      merges_(vocabulary_, spec.merges),
      pre_tokenizer_(std::move(spec.stages)),
      added_first_(vocabulary_, added_ids(vocabulary_, 0)),
      added_second_(vocabulary_, added_ids(vocabulary_, kAfterNormalizer)),
      ignore_merges_(spec.ignore_merges),
      missing_byte_(spec.missing_byte),
      fuse_missing_bytes_(spec.fuse_missing_bytes),
      prefix_(std::move(spec.prefix)),
      suffix_(std::move(spec.suffix)),
      special_(std::move(spec.special)),
      chat_template_(std::move(spec.chat_template)) {
  for (size_t byte = 0; byte < byte_ids_.size(); byte++) {
    const char c = char(byte);
    byte_ids_[byte] = vocabulary_.find_model_token({&c, 1});
  }
  const uint32_t size = vocabulary_.size();
  for (uint32_t id = 0; id < size; id++)
    if ((vocabulary_.flags(id) & kAfterNormalizer) && added_first_.find(vocabulary_.bytes(id)) != kNoToken)
      fail(Status::corrupt_data, "added tokens %u and %u are both %s",
           added_first_.find(vocabulary_.bytes(id)), id, quoted(std::string(vocabulary_.bytes(id))).c_str());
  if (special_.bos) check_id("beginning-of-sequence", *special_.bos, size);
  if (special_.eos) check_id("end-of-sequence", *special_.eos, size);
  if (special_.unknown) check_id("unknown", *special_.unknown, size);
  if (special_.pad) check_id("padding", *special_.pad, size);
  if (missing_byte_) check_id("unknown", *missing_byte_, size);
  for (const uint32_t id : special_.end_of_generation) check_id("end-of-generation", id, size);
  for (const uint32_t id : prefix_) check_id("first", id, size);
  for (const uint32_t id : suffix_) check_id("last", id, size);
  if (!is_utf8(chat_template_)) fail(Status::corrupt_data, "the chat template is not UTF-8");
}

std::vector<uint32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  return TextEncoder(*this, text, options).run();
}

std::string_view Tokenizer::token_bytes(uint32_t id) const {
  if (id >= vocabulary_size())
    fail(Status::out_of_range, "token %u is not below the vocabulary size %u", id, vocabulary_size());
  return vocabulary_.bytes(id);
}

bool Tokenizer::is_special(uint32_t id) const {
  token_bytes(id);  // checks the id
  return vocabulary_.flags(id) & kSpecialToken;
}

std::string Tokenizer::decode(std::span<const uint32_t> ids, bool skip_special) const {
  std::string text;
  for (const uint32_t id : ids)
    if (const std::string_view bytes = token_bytes(id); !skip_special || !is_special(id)) text += bytes;
  return text;
}

std::optional<uint32_t> Tokenizer::find(std::string_view bytes) const {
  uint32_t id = added_first_.find(bytes);
  if (id == kNoToken) id = added_second_.find(bytes);
  if (id == kNoToken) id = vocabulary_.find_model_token(bytes);
  return id == kNoToken ? std::nullopt : std::optional(id);
}

bool Tokenizer::is_end_of_generation(uint32_t id) const noexcept {
  return std::ranges::find(special_.end_of_generation, id) != special_.end_of_generation.end();
}

bool Tokenizer::adds_bos() const noexcept {
  return special_.bos && !prefix_.empty() && prefix_[0] == *special_.bos;
}

std::shared_ptr<const Tokenizer> byte_tokenizer() {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; byte++) spec.tokens.push_back(spell_bytes(std::string(1, char(byte))));
  spec.flags.assign(256, kModelToken);
  return std::make_shared<const Tokenizer>("byte", std::move(spec));
}

}  // namespace riftco
