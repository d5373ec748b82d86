// Writes a tokenizer as the files of a Hugging Face folder.
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "text/tokenizer.h"

namespace riftco {
namespace {

using json = nlohmann::ordered_json;

json part(const char* type, const json& fields = json::object()) {
  json out = {{"type", type}};
  out.update(fields);
  return out;
}

// Null, the one part, or a Sequence of them.
json sequence(std::vector<json> parts, const char* list) {
  if (parts.empty()) return nullptr;
  if (parts.size() == 1) return parts[0];
  return part("Sequence", {{list, parts}});
}

class Writer {
 public:
  explicit Writer(const TokenizerSpec& spec) : spec_(spec) {}

  json tokenizer_json() const {
    return {{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", added_tokens()},
            {"normalizer", normalizer()},
            {"pre_tokenizer", pre_tokenizer()},
            {"post_processor", post_processor()},
            {"decoder", decoder()},
            {"model", model()}};
  }

  json tokenizer_config() const {
    json out = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
    const auto name = [&](const char* field, std::optional<uint32_t> id) {
      if (id) out[field] = spec_.tokens[*id];
    };
    name("bos_token", spec_.special.bos);
    name("eos_token", spec_.special.eos);
    name("unk_token", spec_.special.unknown);
    name("pad_token", spec_.special.pad);
    if (!spec_.chat_template.empty()) out["chat_template"] = spec_.chat_template;
    return out;
  }

 private:
  bool is_byte_level() const { return spec_.spelling == Spelling::byte_level; }

  json added_tokens() const {
    json out = json::array();
    for (uint32_t id = 0; id < spec_.tokens.size(); id++) {
      const uint8_t flags = spec_.flags[id];
      if (!(flags & kAddedToken)) continue;
      out.push_back({{"id", id},
                     {"content", spec_.tokens[id]},
                     {"single_word", (flags & kSingleWord) != 0},
                     {"lstrip", (flags & kStripLeft) != 0},
                     {"rstrip", (flags & kStripRight) != 0},
                     {"normalized", (flags & kAfterNormalizer) != 0},
                     {"special", (flags & kSpecialToken) != 0}});
    }
    return out;
  }

  json normalizer() const {
    std::vector<json> parts;
    for (const NormalizerStep& step : spec_.normalizer) {
      switch (step.kind) {
        case NormalizerStep::Kind::nfc:
          parts.push_back(part("NFC"));
          break;
        case NormalizerStep::Kind::prepend:
          parts.push_back(part("Prepend", {{"prepend", step.to}}));
          break;
        case NormalizerStep::Kind::replace:
          parts.push_back(part("Replace", {{"pattern", {{"String", step.from}}}, {"content", step.to}}));
          break;
      }
    }
    return sequence(std::move(parts), "normalizers");
  }

  json pre_tokenizer() const {
    std::vector<json> parts;
    for (const PreTokenizerStage& stage : spec_.stages)
      if (stage.kind != PreTokenizerStage::space_marks)  // which is part of Metaspace
        parts.push_back(part(
            "Split",
            {{"pattern", {{"Regex", stage_regex(stage)}}}, {"behavior", "Isolated"}, {"invert", false}}));
    if (is_byte_level()) {
      parts.push_back(
          part("ByteLevel", {{"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}));
    } else if (spec_.space_prefix != SpacePrefix::none) {
      const char* const kSchemes[] = {"", "never", "first", "always"};  // by SpacePrefix
      const bool split = std::ranges::find(spec_.stages, PreTokenizerStage::space_marks,
                                           &PreTokenizerStage::kind) != spec_.stages.end();
      parts.push_back(part("Metaspace", {{"replacement", kSpaceMark},
                                         {"prepend_scheme", kSchemes[size_t(spec_.space_prefix)]},
                                         {"split", split}}));
    }
    return sequence(std::move(parts), "pretokenizers");
  }

  json post_processor() const {
    std::vector<json> parts;
    if (is_byte_level())
      parts.push_back(
          part("ByteLevel", {{"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}}));
    if (!spec_.prefix.empty() || !spec_.suffix.empty()) parts.push_back(template_processing());
    return sequence(std::move(parts), "processors");
  }

  json template_processing() const {
    json special = json::object();
    const auto items = [&](int type_id, const char* sequence_id) {
      json out = json::array();
      const auto add = [&](const std::vector<uint32_t>& ids) {
        for (const uint32_t id : ids) {
          const std::string& name = spec_.tokens[id];
          special[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
          out.push_back({{"SpecialToken", {{"id", name}, {"type_id", type_id}}}});
        }
      };
      add(spec_.prefix);
      out.push_back({{"Sequence", {{"id", sequence_id}, {"type_id", type_id}}}});
      add(spec_.suffix);
      return out;
    };
    const json single = items(0, "A");
    json pair = single;
    for (const json& item : items(1, "B")) pair.push_back(item);
    return part("TemplateProcessing", {{"single", single}, {"pair", pair}, {"special_tokens", special}});
  }

  json decoder() const {
    if (is_byte_level())
      return part("ByteLevel", {{"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}});
    std::vector<json> parts = {part("Replace", {{"pattern", {{"String", kSpaceMark}}}, {"content", " "}}),
                               part("ByteFallback"), part("Fuse")};
    if (spec_.strips_first_space)
      parts.push_back(part("Strip", {{"content", " "}, {"start", 1}, {"stop", 0}}));
    return sequence(std::move(parts), "decoders");
  }

  json model() const {
    json vocab = json::object(), merges = json::array();
    for (uint32_t id = 0; id < vocabulary_end(); id++) vocab.emplace(spec_.tokens[id], id);
    for (const MergePair& merge : spec_.scores.empty() ? spec_.merges : merges_of_scores())
      merges.push_back({spec_.tokens[merge.left], spec_.tokens[merge.right]});
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", spec_.missing_byte ? json(spec_.tokens[*spec_.missing_byte]) : json()},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", spec_.fuse_missing_bytes},
            {"byte_fallback", has_byte_tokens()},
            {"ignore_merges", spec_.ignore_merges},
            {"vocab", std::move(vocab)},
            {"merges", std::move(merges)}};
  }

  // Added tokens that encoding cannot make have no place among the model's, unless others follow: readers give
  // those that are not there the ids behind the last.
  uint32_t vocabulary_end() const {
    uint32_t end = uint32_t(spec_.tokens.size());
    while (end > 0 && (spec_.flags[end - 1] & (kAddedToken | kModelToken)) == kAddedToken) end--;
    return end;
  }

  bool has_byte_tokens() const {
    return std::ranges::any_of(spec_.flags, [](uint8_t flags) { return (flags & kByteToken) != 0; });
  }

  // Each token's pairs of tokens, the best token first. Of equal scores, and of one token's pairs, the order
  // of ids decides where SentencePiece would take the leftmost.
  std::vector<MergePair> merges_of_scores() const {
    const Vocabulary vocabulary(spec_.tokens, spec_.flags, spec_.spelling);
    std::vector<uint32_t> order;
    for (uint32_t id = 0; id < spec_.tokens.size(); id++)
      if (spec_.flags[id] & kModelToken) order.push_back(id);
    std::ranges::stable_sort(order, std::greater<>(), [&](uint32_t id) { return spec_.scores[id]; });
    std::vector<MergePair> merges;
    for (const uint32_t id : order) {
      const std::string_view text = spec_.tokens[id];
      if (text.size() > kMaxAddedTokenBytes)
        fail(Status::unsupported, "token %u has %zu bytes, too many to write as merges", id, text.size());
      for (size_t at = 1; at < text.size(); at++) {
        const uint32_t left = vocabulary.find_model_token(text.substr(0, at));
        if (left == kNoToken) continue;
        const uint32_t right = vocabulary.find_model_token(text.substr(at));
        if (right != kNoToken) merges.push_back({left, right});
      }
    }
    return merges;
  }

  const TokenizerSpec& spec_;
};

std::string dump(const json& document) { return document.dump(1, ' ', false) + "\n"; }

void check_kind(const Tokenizer& tokenizer) {
  if (tokenizer.kind() == "byte") fail(Status::unsupported, "the byte tokenizer has no tokenizer.json");
}

}  // namespace

std::string to_tokenizer_json(const Tokenizer& tokenizer) {
  check_kind(tokenizer);
  const TokenizerSpec spec = tokenizer.spec();
  return dump(Writer(spec).tokenizer_json());
}

std::string to_tokenizer_config(const Tokenizer& tokenizer) {
  check_kind(tokenizer);
  const TokenizerSpec spec = tokenizer.spec();
  return dump(Writer(spec).tokenizer_config());
}

}  // namespace riftco
