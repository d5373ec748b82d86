// Builds a tokenizer from GGUF metadata.
#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "text/spec_builder.h"
#include "text/tokenizer.h"

namespace riftco {
namespace {

// tokenizer.ggml.token_type
enum GgufTokenType : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

uint8_t flags_of(int64_t type, bool sentence_piece, size_t id, const std::string& where) {
  switch (type) {
    case kNormal:
      return kModelToken;
    case kUnknown:
    case kControl:  // SentencePiece never joins text to one
      return uint8_t((sentence_piece ? 0 : kModelToken) | kAddedToken | kSpecialToken);
    case kUserDefined:
      return uint8_t(kModelToken | kAddedToken | (sentence_piece ? 0 : kAfterNormalizer));
    case kUnused:
      return 0;
    case kByte:
      if (sentence_piece) return kByteToken;
  }
  fail(Status::unsupported, "%s: token %zu has the type %lld", where.c_str(), id,
       static_cast<long long>(type));
}

std::optional<uint32_t> checked_id(const char* name, std::optional<uint64_t> id, size_t size,
                                   const std::string& where) {
  if (id && *id >= size)
    fail(Status::corrupt_data, "%s: tokenizer.ggml.%s is %llu, but there are %zu tokens", where.c_str(), name,
         static_cast<unsigned long long>(*id), size);
  return id ? std::optional(uint32_t(*id)) : std::nullopt;
}

// Names under which converters store the patterns that we have.
struct KnownPattern {
  const char* name;
  PreTokenizerStage::Kind kind;
};
constexpr KnownPattern kKnownPatterns[] = {
    {"gpt-2", PreTokenizerStage::gpt2},
    {"gpt2", PreTokenizerStage::gpt2},
    {"phi-2", PreTokenizerStage::gpt2},
    {"smollm", PreTokenizerStage::digits},
    {"starcoder", PreTokenizerStage::digits},
    {"refact", PreTokenizerStage::digits},
    {"llama-bpe", PreTokenizerStage::llama3},
    {"llama-v3", PreTokenizerStage::llama3},
    {"llama3", PreTokenizerStage::llama3},
    {"qwen2", PreTokenizerStage::qwen2},
    {"deepseek-r1-qwen", PreTokenizerStage::qwen2},
    {"tekken", PreTokenizerStage::tekken},
};

void set_pre_tokenizer(TokenizerSpec& spec, std::string_view pre, const std::string& where) {
  const KnownPattern* known = std::ranges::find(kKnownPatterns, pre, &KnownPattern::name);
  if (known == std::end(kKnownPatterns)) {
    std::string names;
    for (const KnownPattern& pattern : kKnownPatterns)
      names += (names.empty() ? "" : ", ") + std::string(pattern.name);
    fail(Status::unsupported, "%s: tokenizer.ggml.pre is %s; known are %s", where.c_str(),
         quoted(pre.data(), pre.size()).c_str(), names.c_str());
  }
  spec.stages = {known->kind};
  if (known->kind == PreTokenizerStage::digits) spec.stages.push_back(PreTokenizerStage::gpt2);
  if (known->kind == PreTokenizerStage::qwen2) spec.normalizer = {{NormalizerStep::Kind::nfc}};
  // So do the tokenizers whose patterns these are.
  spec.ignore_merges = known->kind == PreTokenizerStage::llama3 || known->kind == PreTokenizerStage::tekken;
}

void set_sentence_piece(TokenizerSpec& spec, const GgufTokenizerMetadata& m, const std::string& where) {
  if (m.scores.size() != m.tokens.size())
    fail(Status::corrupt_data, "%s: %zu tokens but %zu tokenizer.ggml.scores", where.c_str(), m.tokens.size(),
         m.scores.size());
  spec.spelling = Spelling::sentence_piece;
  spec.scores = m.scores;
  if (m.add_space_prefix.value_or(true)) {
    spec.normalizer.push_back({NormalizerStep::Kind::prepend, {}, std::string(kSpaceMark)});
    spec.strips_first_space = true;
  }
  spec.normalizer.push_back({NormalizerStep::Kind::replace, " ", std::string(kSpaceMark)});
  spec.missing_byte = checked_id("unknown_token_id", m.unknown_token_id, m.tokens.size(), where);
  spec.fuse_missing_bytes = true;
}

void set_special_tokens(TokenizerSpec& spec, const GgufTokenizerMetadata& m, const std::string& where) {
  const size_t size = spec.tokens.size();
  SpecialTokens& special = spec.special;
  special.bos = checked_id("bos_token_id", m.bos_token_id, size, where);
  special.eos = checked_id("eos_token_id", m.eos_token_id, size, where);
  special.unknown = checked_id("unknown_token_id", m.unknown_token_id, size, where);
  special.pad = checked_id("padding_token_id", m.padding_token_id, size, where);
  for (const auto id : {special.eos, checked_id("eot_token_id", m.eot_token_id, size, where),
                        checked_id("eom_token_id", m.eom_token_id, size, where)})
    if (id) add_end_of_generation(special, *id);

  // Files of the Llama families that say nothing mean yes.
  const bool is_llama = spec.ignore_merges || spec.spelling == Spelling::sentence_piece;
  const bool add_bos = m.add_bos_token.value_or(is_llama && special.bos);
  const bool add_eos = m.add_eos_token.value_or(false);
  if ((add_bos && !special.bos) || (add_eos && !special.eos))
    fail(Status::corrupt_data, "%s: tokenizer.ggml.add_%s_token without %s_token_id", where.c_str(),
         add_bos && !special.bos ? "bos" : "eos", add_bos && !special.bos ? "bos" : "eos");
  if (add_bos) spec.prefix = {*special.bos};
  if (add_eos) spec.suffix = {*special.eos};
}

}  // namespace

std::shared_ptr<const Tokenizer> tokenizer_from_gguf(const GgufTokenizerMetadata& m,
                                                     const std::string& where) {
  const bool sentence_piece = m.model == "llama";
  if (!sentence_piece && m.model != "gpt2")
    fail(Status::unsupported,
         "%s: tokenizer.ggml.model is %s; gpt2 (byte-level BPE) and llama (SentencePiece BPE) are supported",
         where.c_str(), quoted(m.model.data(), m.model.size()).c_str());
  if (!sentence_piece && m.add_space_prefix.value_or(false))
    fail(Status::unsupported, "%s: tokenizer.ggml.add_space_prefix", where.c_str());
  if (!m.token_types.empty() && m.token_types.size() != m.tokens.size())
    fail(Status::corrupt_data, "%s: %zu tokens but %zu token types", where.c_str(), m.tokens.size(),
         m.token_types.size());

  TokenizerSpec spec;
  spec.tokens.assign(m.tokens.begin(), m.tokens.end());
  for (size_t id = 0; id < m.tokens.size(); id++)
    spec.flags.push_back(m.token_types.empty() ? uint8_t(kModelToken)
                                               : flags_of(m.token_types[id], sentence_piece, id, where));
  if (sentence_piece) {
    set_sentence_piece(spec, m, where);
  } else {
    set_pre_tokenizer(spec, m.pre, where);
  }
  set_special_tokens(spec, m, where);
  spec.chat_template = m.chat_template;
  if (!sentence_piece) {  // whose files may have merges, made from the scores
    const TokenIndex index(spec, where);
    spec.merges.reserve(m.merges.size());
    for (size_t rank = 0; rank < m.merges.size(); rank++)
      spec.merges.push_back(index.merge(rank, m.merges[rank]));
  }
  return make_tokenizer(sentence_piece ? "sentencepiece" : "bpe", std::move(spec), where);
}

}  // namespace riftco
