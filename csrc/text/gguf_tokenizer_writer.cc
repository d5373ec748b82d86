// Writes a tokenizer as GGUF metadata, and reads it back to be sure that it is the same.
#include <algorithm>

#include "base/error.h"
#include "text/tokenizer.h"

namespace riftco {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  fail(Status::unsupported, "a GGUF file cannot hold this tokenizer: %s", what.c_str());
}

// tokenizer.ggml.token_type
int32_t type_of(uint8_t flags, bool is_unknown) {
  if (flags & kByteToken) return 6;
  if (flags & kSpecialToken) return is_unknown ? 2 : 3;
  if (flags & kAddedToken) return 4;
  return flags & kModelToken ? 1 : 5;
}

// The name under which the format's readers know the pattern.
const char* pre_of(const TokenizerSpec& spec) {
  if (spec.stages.empty()) return "gpt-2";  // right when nothing is merged
  switch (spec.stages[0].kind) {
    case PreTokenizerStage::gpt2:
      return "gpt-2";
    case PreTokenizerStage::digits:
      return "smollm";
    case PreTokenizerStage::llama3:
      return "llama-bpe";
    case PreTokenizerStage::qwen2:
      return "qwen2";
    case PreTokenizerStage::tekken:
      return "tekken";
    default:
      refuse(format("its pattern (%s) has no name there", stage_name(spec.stages[0].kind)));
  }
}

std::optional<uint32_t> id(const GgufTokenizer& t, const char* name) {
  const auto entry = std::ranges::find(t.ids, name, &std::pair<std::string, uint32_t>::first);
  return entry == t.ids.end() ? std::nullopt : std::optional(entry->second);
}

std::optional<bool> flag(const GgufTokenizer& t, const char* name) {
  const auto entry = std::ranges::find(t.flags, name, &std::pair<std::string, bool>::first);
  return entry == t.flags.end() ? std::nullopt : std::optional(entry->second);
}

TokenizerSpec read_back(const GgufTokenizer& t) {
  return tokenizer_from_gguf({.model = t.model,
                              .pre = t.pre,
                              .tokens = {t.tokens.begin(), t.tokens.end()},
                              .merges = {t.merges.begin(), t.merges.end()},
                              .token_types = {t.token_types.begin(), t.token_types.end()},
                              .scores = t.scores,
                              .bos_token_id = id(t, "bos"),
                              .eos_token_id = id(t, "eos"),
                              .eot_token_id = id(t, "eot"),
                              .eom_token_id = id(t, "eom"),
                              .unknown_token_id = id(t, "unknown"),
                              .padding_token_id = id(t, "padding"),
                              .add_bos_token = flag(t, "add_bos_token"),
                              .add_eos_token = flag(t, "add_eos_token"),
                              .add_space_prefix = flag(t, "add_space_prefix"),
                              .chat_template = t.chat_template},
                             "GGUF")
      ->spec();
}

// Flags that make a difference: byte-level encoding finds added tokens first, whatever the merges could make
// and in whichever pass.
uint8_t telling(uint8_t flags, Spelling spelling) {
  if (spelling == Spelling::byte_level && (flags & kAddedToken))
    return uint8_t(flags & ~(kModelToken | kAfterNormalizer));
  return flags;
}

bool has_all_bytes(const Tokenizer& tokenizer) {
  for (int byte = 0; byte < 256; byte++) {
    const char c = char(byte);
    if (!tokenizer.find({&c, 1})) return false;
  }
  return true;
}

void check_same(const Tokenizer& tokenizer, const TokenizerSpec& a, const TokenizerSpec& b) {
  for (size_t i = 0; i < a.tokens.size(); i++) {
    if (a.tokens[i] != b.tokens[i]) refuse(format("token %zu is spelled in another way", i));
    if (telling(a.flags[i], a.spelling) != telling(b.flags[i], a.spelling))
      refuse(format("token %zu (%s) strips white space or is found in words only", i,
                    quoted(a.tokens[i]).c_str()));
  }
  if (a.merges != b.merges) refuse("its merges");
  if (!std::equal(a.scores.begin(), a.scores.end(), b.scores.begin())) refuse("its scores");
  if (a.normalizer != b.normalizer || a.space_prefix != b.space_prefix ||
      a.strips_first_space != b.strips_first_space)
    refuse("its normalizer");
  if (a.ignore_merges != b.ignore_merges || (a.stages != b.stages && !a.merges.empty()))
    refuse("its pre-tokenizer or ignore_merges");
  if (!has_all_bytes(tokenizer) &&
      (a.missing_byte != b.missing_byte || a.fuse_missing_bytes != b.fuse_missing_bytes))
    refuse("it has a token for bytes that have none");
  if (a.special.bos != b.special.bos || a.special.eos != b.special.eos ||
      a.special.unknown != b.special.unknown || a.special.pad != b.special.pad ||
      a.special.end_of_generation != b.special.end_of_generation)
    refuse("it has more than three tokens that end a generation");
}

}  // namespace

GgufTokenizer to_gguf_tokenizer(const Tokenizer& tokenizer, uint32_t vocabulary_size) {
  const TokenizerSpec spec = tokenizer.spec();
  const SpecialTokens& special = spec.special;
  const bool byte_level = spec.spelling == Spelling::byte_level;
  if (!byte_level && spec.scores.empty()) refuse("SentencePiece with merges and no scores");
  const auto is_only = [](const std::vector<uint32_t>& ids, std::optional<uint32_t> id) {
    return ids.empty() || (ids.size() == 1 && id == ids[0]);
  };
  if (!is_only(spec.prefix, special.bos) || !is_only(spec.suffix, special.eos))
    refuse("the tokens around a prompt are not its BOS and EOS");
  GgufTokenizer t;
  t.model = byte_level ? "gpt2" : "llama";
  t.pre = byte_level ? pre_of(spec) : "default";
  t.tokens = spec.tokens;
  t.scores = spec.scores;
  for (uint32_t i = 0; i < spec.tokens.size(); i++)
    t.token_types.push_back(type_of(spec.flags[i], special.unknown == i));
  for (uint32_t i = uint32_t(t.tokens.size()); i < vocabulary_size; i++) {
    t.tokens.push_back(format("[PAD%u]", i));
    t.token_types.push_back(type_of(0, false));
    if (!t.scores.empty()) t.scores.push_back(0);
  }
  for (const MergePair& merge : spec.merges)
    t.merges.push_back(spec.tokens[merge.left] + " " + spec.tokens[merge.right]);
  const auto add_id = [&](const char* name, std::optional<uint32_t> value) {
    if (value) t.ids.emplace_back(name, *value);
  };
  add_id("bos", special.bos);
  add_id("eos", special.eos);
  std::vector<uint32_t> ends = special.end_of_generation;
  std::erase(ends, special.eos.value_or(kNoToken));
  if (ends.size() > 0) add_id("eot", ends[0]);
  if (ends.size() > 1) add_id("eom", ends[1]);
  add_id("unknown", special.unknown);
  add_id("padding", special.pad);
  t.flags.emplace_back("add_bos_token", !spec.prefix.empty());
  t.flags.emplace_back("add_eos_token", !spec.suffix.empty());
  if (!byte_level) t.flags.emplace_back("add_space_prefix", spec.strips_first_space);
  t.chat_template = spec.chat_template;
  check_same(tokenizer, spec, read_back(t));
  return t;
}

}  // namespace riftco
