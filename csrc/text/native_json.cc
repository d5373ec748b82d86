// The tokenizer inside our own files: one JSON document that holds everything.
#include <algorithm>
#include <span>

#include "base/error.h"
#include "base/json.h"
#include "text/spec_builder.h"
#include "text/tokenizer.h"

namespace riftco {
namespace {

using nlohmann::json;

constexpr char kFormat[] = "riftco-tokenizer";
constexpr uint64_t kVersion = 2;  // 1 had byte-level tokenizers only

const char* const kSpacePrefixes[] = {"none", "never", "first", "every"};  // by SpacePrefix
const char* const kStepKinds[] = {"nfc", "prepend", "replace"};            // by NormalizerStep::Kind

size_t place_of(const std::string& name, std::span<const char* const> names) {
  return size_t(std::ranges::find(names, name) - names.begin());
}

json id_or_null(std::optional<uint32_t> id) { return id ? json(*id) : json(); }

class Reader {
 public:
  Reader(const json& root, const std::string& where) : root_(root), where_(where) {}

  TokenizerSpec run() const {
    TokenizerSpec spec;
    for (const json& token : field("tokens", json::value_t::array))
      spec.tokens.push_back(string_of(token, "tokens"));
    spec.flags.assign(spec.tokens.size(), kModelToken);
    const std::vector<uint32_t> flags = numbers("flags");
    if (flags.size() % 2 != 0) corrupt("flags has an odd length");
    for (size_t i = 0; i < flags.size(); i += 2) {
      if (flags[i] >= spec.flags.size() || flags[i + 1] > UINT8_MAX) corrupt("flags are out of range");
      spec.flags[flags[i]] = uint8_t(flags[i + 1]);
    }
    const std::vector<uint32_t> merges = numbers("merges");
    if (merges.size() % 2 != 0) corrupt("merges has an odd length");
    for (size_t i = 0; i < merges.size(); i += 2) spec.merges.push_back({merges[i], merges[i + 1]});
    for (const json& stage : field("pre_tokenizer", json::value_t::array))
      spec.stages.push_back(stage_of(stage));
    if (spec.stages.size() > kMaxPreTokenizerStages) corrupt("pre_tokenizer has too many stages");
    spec.ignore_merges = field("ignore_merges", json::value_t::boolean).get<bool>();
    spec.missing_byte = id("missing_byte");
    spec.fuse_missing_bytes = field("fuse_missing_bytes", json::value_t::boolean).get<bool>();
    spec.prefix = numbers("prefix");
    spec.suffix = numbers("suffix");
    spec.special.bos = id("bos");
    spec.special.eos = id("eos");
    spec.special.unknown = id("unknown");
    spec.special.pad = id("pad");
    for (const uint32_t end : numbers("end_of_generation")) add_end_of_generation(spec.special, end);
    spec.chat_template = string_of(at("chat_template"), "chat_template");
    if (at("version") != 1) read_second(spec);
    return spec;
  }

  const json& at(const char* name) const {
    const auto entry = root_.find(name);
    if (entry == root_.end()) corrupt(format("%s is missing", name));
    return *entry;
  }
  const json& field(const char* name, json::value_t type) const {
    const json& value = at(name);
    if (value.type() != type)
      corrupt(format("%s is %s, not %s", name, value.type_name(), json(type).type_name()));
    return value;
  }
  const std::string& string_of(const json& value, const char* name) const {
    if (!value.is_string()) corrupt(format("%s: %s where a string belongs", name, value.type_name()));
    return value.get_ref<const std::string&>();
  }
  [[noreturn]] void corrupt(const std::string& message) const {
    fail(Status::corrupt_data, "%s: %s", where_.c_str(), message.c_str());
  }

 private:
  // What version 2 has added.
  void read_second(TokenizerSpec& spec) const {
    if (string_of(at("kind"), "kind") == "sentencepiece") spec.spelling = Spelling::sentence_piece;
    for (const json& score : field("scores", json::value_t::array)) {
      if (!score.is_number()) corrupt("a score is not a number");
      spec.scores.push_back(score.get<float>());
    }
    for (const json& step : field("normalizer", json::value_t::array)) {
      if (!step.is_array() || step.size() != 3) corrupt("a step of normalizer is not [kind, from, to]");
      const size_t kind = place_of(string_of(step[0], "normalizer"), kStepKinds);
      if (kind == std::size(kStepKinds)) corrupt("a step of normalizer is of no known kind");
      spec.normalizer.push_back(
          {NormalizerStep::Kind(kind), string_of(step[1], "normalizer"), string_of(step[2], "normalizer")});
    }
    if (spec.normalizer.size() > kMaxNormalizerSteps) corrupt("normalizer has too many steps");
    const size_t prefix = place_of(string_of(at("space_prefix"), "space_prefix"), kSpacePrefixes);
    if (prefix == std::size(kSpacePrefixes)) corrupt("space_prefix is of no known kind");
    spec.space_prefix = SpacePrefix(prefix);
    spec.strips_first_space = field("strips_first_space", json::value_t::boolean).get<bool>();
  }

  // A name, or an object with a pattern.
  PreTokenizerStage stage_of(const json& stage) const {
    if (stage.is_object() && stage.contains("pattern"))
      return {PreTokenizerStage::pattern, string_of(stage["pattern"], "pattern")};
    return stage_from_name(string_of(stage, "pre_tokenizer"));
  }

  uint32_t number(const json& value, const char* name) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= kMaxVocabulary)
      corrupt(
          format("%s: %s is not a token id", name, value.is_primitive() ? value.dump().c_str() : "a list"));
    return value.get<uint32_t>();
  }
  std::vector<uint32_t> numbers(const char* name) const {
    std::vector<uint32_t> all;
    for (const json& value : field(name, json::value_t::array)) all.push_back(number(value, name));
    return all;
  }
  std::optional<uint32_t> id(const char* name) const {
    const json& value = at(name);
    return value.is_null() ? std::nullopt : std::optional(number(value, name));
  }

  const json& root_;
  const std::string& where_;
};

}  // namespace

std::string Tokenizer::to_json() const {
  json root = {{"format", kFormat}, {"version", kVersion}, {"kind", kind_}};
  if (kind_ == "byte") return root.dump();
  const TokenizerSpec spec = this->spec();
  json flags = json::array(), merges = json::array(), stages = json::array(), steps = json::array();
  for (uint32_t id = 0; id < vocabulary_size(); id++) {
    if (spec.flags[id] == kModelToken) continue;
    flags.push_back(id);
    flags.push_back(spec.flags[id]);
  }
  for (const MergePair& merge : spec.merges) {
    merges.push_back(merge.left);
    merges.push_back(merge.right);
  }
  for (const PreTokenizerStage& stage : spec.stages)
    stages.push_back(stage.kind == PreTokenizerStage::pattern ? json{{"pattern", stage.regex}}
                                                              : json(stage_name(stage.kind)));
  for (const NormalizerStep& step : spec.normalizer)
    steps.push_back({kStepKinds[size_t(step.kind)], step.from, step.to});
  root["tokens"] = spec.tokens;
  root["flags"] = std::move(flags);  // [id, flags, id, flags, …] of tokens that are not plain model tokens
  root["merges"] = std::move(merges);
  root["scores"] = spec.scores;
  root["normalizer"] = std::move(steps);
  root["space_prefix"] = kSpacePrefixes[size_t(spec.space_prefix)];
  root["strips_first_space"] = spec.strips_first_space;
  root["pre_tokenizer"] = std::move(stages);
  root["ignore_merges"] = spec.ignore_merges;
  root["missing_byte"] = id_or_null(spec.missing_byte);
  root["fuse_missing_bytes"] = spec.fuse_missing_bytes;
  root["prefix"] = spec.prefix;
  root["suffix"] = spec.suffix;
  root["bos"] = id_or_null(spec.special.bos);
  root["eos"] = id_or_null(spec.special.eos);
  root["unknown"] = id_or_null(spec.special.unknown);
  root["pad"] = id_or_null(spec.special.pad);
  root["end_of_generation"] = spec.special.end_of_generation;
  root["chat_template"] = spec.chat_template;
  return root.dump();
}

std::shared_ptr<const Tokenizer> tokenizer_from_json(std::string_view text, const std::string& where) {
  const json root = parse_json(text, where);
  const Reader reader(root, where);
  if (!root.is_object() || reader.at("format") != kFormat) reader.corrupt("this is no tokenizer of ours");
  if (const json& version = reader.field("version", json::value_t::number_unsigned); version > kVersion)
    fail(Status::version_mismatch, "%s: tokenizer format %s; this library reads up to %llu", where.c_str(),
         version.dump().c_str(), static_cast<unsigned long long>(kVersion));
  const std::string& kind = reader.string_of(reader.at("kind"), "kind");
  if (kind == "byte") return byte_tokenizer();
  if (kind != "bpe" && kind != "sentencepiece")
    fail(Status::unsupported, "%s: the tokenizer kind %s", where.c_str(), riftco::quoted(kind).c_str());
  return make_tokenizer(kind.c_str(), reader.run(), where);
}

}  // namespace riftco
