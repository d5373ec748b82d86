// Builds a tokenizer from GGUF metadata.
#include "base/error.h"
#include "text/spec_builder.h"
#include "text/tokenizer.h"

namespace riftco {
namespace {

// tokenizer.ggml.token_type
enum GgufTokenType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5 };

uint8_t flags_of(int64_t type, size_t id, const std::string& where) {
  switch (type) {
    case kNormal:
      return kModelToken;
    case kUnknown:
    case kControl:
      return kModelToken | kAddedToken | kSpecialToken;
    case kUserDefined:
      return kModelToken | kAddedToken | kAfterNormalizer;
    case kUnused:
      return 0;
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

void set_pre_tokenizer(TokenizerSpec& spec, std::string_view pre, const std::string& where) {
  using enum PreTokenizerStage;
  if (pre == "gpt-2" || pre == "gpt2") {
    spec.stages = {gpt2};
  } else if (pre == "smollm") {
    spec.stages = {digits, gpt2};
  } else if (pre == "llama-bpe" || pre == "llama-v3" || pre == "llama3") {
    spec.stages = {llama3};
    spec.ignore_merges = true;
  } else {
    fail(Status::unsupported, "%s: tokenizer.ggml.pre is %s; gpt-2, smollm and llama-bpe are supported",
         where.c_str(), quoted(pre.data(), pre.size()).c_str());
  }
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

  // Files of the Llama 3 family that say nothing mean yes.
  const bool add_bos = m.add_bos_token.value_or(spec.ignore_merges && special.bos);
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
  if (m.model != "gpt2")
    fail(Status::unsupported, "%s: tokenizer.ggml.model is %s; gpt2 (byte-level BPE) is supported",
         where.c_str(), quoted(m.model.data(), m.model.size()).c_str());
  if (m.add_space_prefix.value_or(false))
    fail(Status::unsupported, "%s: tokenizer.ggml.add_space_prefix", where.c_str());
  if (!m.token_types.empty() && m.token_types.size() != m.tokens.size())
    fail(Status::corrupt_data, "%s: %zu tokens but %zu token types", where.c_str(), m.tokens.size(),
         m.token_types.size());

  TokenizerSpec spec;
  spec.tokens.assign(m.tokens.begin(), m.tokens.end());
  for (size_t id = 0; id < m.tokens.size(); id++)
    spec.flags.push_back(m.token_types.empty() ? uint8_t(kModelToken)
                                               : flags_of(m.token_types[id], id, where));
  set_pre_tokenizer(spec, m.pre, where);
  set_special_tokens(spec, m, where);
  spec.chat_template = m.chat_template;
  {
    const TokenIndex index(spec, where);
    spec.merges.reserve(m.merges.size());
    for (size_t rank = 0; rank < m.merges.size(); rank++)
      spec.merges.push_back(index.merge(rank, m.merges[rank]));
  }
  return make_tokenizer("bpe", std::move(spec), where);
}

}  // namespace riftco
