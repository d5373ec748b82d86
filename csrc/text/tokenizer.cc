#include "text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "text/byte_spelling.h"
#include "text/score_merger.h"
#include "text/text_encoder.h"
#include "text/utf8.h"

namespace riftco {
namespace {

constexpr size_t kMaxReplacementBytes = 64;  // a normalizer makes text at most so many times longer

// The added tokens of one of the two passes. The second looks for normalised text in normalised text.
std::vector<AddedTokens::Pattern> added_patterns(const Vocabulary& vocabulary, uint8_t pass,
                                                 const std::vector<NormalizerStep>& normalizer) {
  std::vector<AddedTokens::Pattern> patterns;
  for (uint32_t id = 0; id < vocabulary.size(); id++) {
    if ((vocabulary.flags(id) & (kAddedToken | kAfterNormalizer)) != (kAddedToken | pass)) continue;
    patterns.push_back(
        {pass ? normalize(normalizer, vocabulary.key(id)) : std::string(vocabulary.key(id)), id});
    if (patterns.back().text.empty())
      fail(Status::corrupt_data, "added token %u is nothing once it is normalised", id);
  }
  return patterns;
}

// Where no token has U+2581 behind anything else, no merge passes such a place: words can be cut there, which
// changes no id and lets them be found again.
std::vector<PreTokenizerStage> cut_at_words(std::vector<PreTokenizerStage> stages, const TokenizerSpec& spec,
                                            const Vocabulary& vocabulary) {
  if (spec.spelling != Spelling::sentence_piece || vocabulary.find_model_token(kSpaceMark) == kNoToken)
    return stages;
  for (uint32_t id = 0; id < vocabulary.size(); id++) {
    std::string_view key = vocabulary.key(id);
    while (key.starts_with(kSpaceMark)) key.remove_prefix(kSpaceMark.size());
    if ((vocabulary.flags(id) & kModelToken) && key.find(kSpaceMark) != std::string_view::npos) return stages;
  }
  stages.push_back(PreTokenizerStage::marked_words);
  return stages;
}

void check_id(const char* what, uint32_t id, uint32_t size) {
  if (id >= size)
    fail(Status::corrupt_data, "the %s token is %u, but the vocabulary has %u tokens", what, id, size);
}

}  // namespace

Tokenizer::Tokenizer(std::string kind, TokenizerSpec spec)
    : kind_(std::move(kind)),
      spec_(std::move(spec)),
      vocabulary_(spec_.tokens, std::move(spec_.flags), spec_.spelling),
      merges_(vocabulary_, spec_.merges),
      pre_tokenizer_(cut_at_words(spec_.stages, spec_, vocabulary_)),
      added_first_(vocabulary_, added_patterns(vocabulary_, 0, spec_.normalizer)),
      added_second_(vocabulary_, added_patterns(vocabulary_, kAfterNormalizer, spec_.normalizer)),
      score_places_(score_places(spec_.scores)) {
  spec_.tokens = {};
  spec_.flags = {};
  spec_.merges = {};
  byte_tokens_.fill(kNoToken);
  const uint32_t size = vocabulary_.size();
  for (uint32_t id = 0; id < size; id++) {
    if (!(vocabulary_.flags(id) & kByteToken)) continue;
    uint32_t& token = byte_tokens_[static_cast<uint8_t>(vocabulary_.bytes(id)[0])];
    if (token != kNoToken) fail(Status::corrupt_data, "tokens %u and %u are the same byte", token, id);
    token = id;
  }
  for (size_t byte = 0; byte < byte_ids_.size(); byte++) {
    const char c = char(byte);
    byte_ids_[byte] = vocabulary_.find_model_token({&c, 1});
  }
  check_parts();
}

void Tokenizer::check_parts() const {
  const uint32_t size = vocabulary_.size();
  if (spec_.normalizer.empty())
    for (uint32_t id = 0; id < size; id++)
      if ((vocabulary_.flags(id) & kAfterNormalizer) && added_first_.find(vocabulary_.key(id)) != kNoToken)
        fail(Status::corrupt_data, "added tokens %u and %u are both %s",
             added_first_.find(vocabulary_.key(id)), id, quoted(std::string(vocabulary_.bytes(id))).c_str());
  if (!score_places_.empty() && score_places_.size() != size)
    fail(Status::corrupt_data, "%u tokens but %zu scores", size, score_places_.size());
  if (!score_places_.empty() && merges_.size() != 0) fail(Status::corrupt_data, "both merges and scores");
  const SpecialTokens& special = spec_.special;
  if (special.bos) check_id("beginning-of-sequence", *special.bos, size);
  if (special.eos) check_id("end-of-sequence", *special.eos, size);
  if (special.unknown) check_id("unknown", *special.unknown, size);
  if (special.pad) check_id("padding", *special.pad, size);
  if (spec_.missing_byte) check_id("unknown", *spec_.missing_byte, size);
  for (const uint32_t id : special.end_of_generation) check_id("end-of-generation", id, size);
  for (const uint32_t id : spec_.prefix) check_id("first", id, size);
  for (const uint32_t id : spec_.suffix) check_id("last", id, size);
  if (!is_utf8(spec_.chat_template)) fail(Status::corrupt_data, "the chat template is not UTF-8");
  for (const NormalizerStep& step : spec_.normalizer)
    if (!is_utf8(step.from) || !is_utf8(step.to) || step.to.size() > kMaxReplacementBytes ||
        (step.kind == NormalizerStep::Kind::replace && step.from.empty()))
      fail(Status::corrupt_data, "the normalizer replaces %s by %zu bytes", quoted(step.from).c_str(),
           step.to.size());
}

TokenizerSpec Tokenizer::spec() const {
  TokenizerSpec spec = spec_;
  for (uint32_t id = 0; id < vocabulary_size(); id++) {
    spec.tokens.push_back(vocabulary_.spelled(id));
    spec.flags.push_back(vocabulary_.flags(id));
  }
  for (uint32_t rank = 0; rank < merges_.size(); rank++) spec.merges.push_back(merges_.pair(rank));
  return spec;
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
  if (spec_.strips_first_space && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::optional<uint32_t> Tokenizer::find(std::string_view bytes) const {
  const bool marked = spec_.spelling == Spelling::sentence_piece;
  const std::string spelled = marked ? replace_all(bytes, " ", kSpaceMark) : std::string(bytes);
  uint32_t id = added_first_.find(bytes);
  for (uint32_t added = 0; id == kNoToken && added < vocabulary_size(); added++)
    if ((vocabulary_.flags(added) & kAfterNormalizer) && vocabulary_.key(added) == bytes) id = added;
  if (id == kNoToken) id = vocabulary_.find_model_token(spelled);
  if (id == kNoToken && bytes.size() == 1) id = byte_tokens_[static_cast<uint8_t>(bytes[0])];
  return id == kNoToken ? std::nullopt : std::optional(id);
}

bool Tokenizer::is_end_of_generation(uint32_t id) const noexcept {
  const auto& ends = spec_.special.end_of_generation;
  return std::ranges::find(ends, id) != ends.end();
}

bool Tokenizer::adds_bos() const noexcept {
  return spec_.special.bos && !spec_.prefix.empty() && spec_.prefix[0] == *spec_.special.bos;
}

std::shared_ptr<const Tokenizer> byte_tokenizer() {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; byte++) spec.tokens.push_back(spell_bytes(std::string(1, char(byte))));
  spec.flags.assign(256, kModelToken);
  return std::make_shared<const Tokenizer>("byte", std::move(spec));
}

}  // namespace riftco
