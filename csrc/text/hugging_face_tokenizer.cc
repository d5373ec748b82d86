// Builds a tokenizer from the files of a Hugging Face folder. What a file asks for and is not built is
// refused by name: a field left out silently would be wrong ids.
#include "base/error.h"
#include "text/byte_spelling.h"
#include "text/hugging_face_pipeline.h"
#include "text/json_fields.h"
#include "text/spec_builder.h"
#include "text/tokenizer.h"

namespace riftco {
namespace {

using nlohmann::json;

constexpr size_t kMaxFileBytes = size_t(128) << 20;

class Importer : JsonFields {
 public:
  Importer(const HuggingFaceTokenizerFiles& files, const std::string& where)
      : JsonFields(where), files_(files) {}

  TokenizerSpec run() {
    const json root = parse(files_.tokenizer_json, "tokenizer.json");
    const json& model = field(root, "model", json::value_t::object);
    check_model(model);
    read_pipeline(spec_, root, where_);
    const bool has_byte_tokens = flag(model, "byte_fallback", false);
    if (has_byte_tokens && spec_.spelling == Spelling::byte_level)
      unsupported("byte_fallback with ByteLevel");
    read_tokens(field(model, "vocab", json::value_t::object), optional_field(root, "added_tokens"));
    if (has_byte_tokens) flag_byte_tokens();
    const TokenIndex index(spec_, where_);
    index_ = &index;
    read_merges(field(model, "merges", json::value_t::array));
    if (const json& unknown = optional_field(model, "unk_token"); !unknown.is_null())
      spec_.missing_byte = named_token(string_of(unknown, "unk_token"), "unk_token");
    read_post_processor(optional_field(root, "post_processor"));
    read_special_tokens();
    return std::move(spec_);
  }

 private:
  json parse(std::string_view text, const char* name) const {
    if (text.size() > kMaxFileBytes)
      corrupt(format("%s has %zu bytes; at most %zu are read", name, text.size(), kMaxFileBytes));
    json value = parse_json(text, where_ + ": " + name);
    if (!value.is_object()) corrupt(format("%s is not a JSON object", name));
    return value;
  }

  uint32_t id_of(const json& value, const char* name, size_t size) const {
    if (!value.is_number_unsigned()) corrupt(format("the id of %s is not a whole number", name));
    const uint64_t id = value.get<uint64_t>();
    if (id >= size)
      corrupt(format("the id of %s is %llu, but there are %zu tokens", name,
                     static_cast<unsigned long long>(id), size));
    return uint32_t(id);
  }

  void check_model(const json& model) {
    if (const json& type = optional_field(model, "type"); !type.is_null() && string_of(type, "type") != "BPE")
      unsupported(format("the model type %s", riftco::quoted(string_of(type, "type")).c_str()));
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const json& text = optional_field(model, name); !text.is_null() && !string_of(text, name).empty())
        unsupported(format("%s %s", name, riftco::quoted(string_of(text, name)).c_str()));
    if (const json& dropout = optional_field(model, "dropout"); !dropout.is_null() && dropout != 0)
      unsupported("dropout");
    spec_.ignore_merges = flag(model, "ignore_merges", false);
    spec_.fuse_missing_bytes = flag(model, "fuse_unk", false);
  }

  void read_tokens(const json& vocab, const json& added) {
    if (!added.is_null() && !added.is_array()) corrupt("added_tokens is not an array");
    size_t size = vocab.size();
    for (const json& token : added)
      if (!vocab.contains(string_of(optional_field(token, "content"), "content"))) size++;
    spec_.tokens.resize(size);
    spec_.flags.resize(size);
    std::vector<bool> given(size);
    const auto give = [&](uint32_t id, const std::string& content) {
      if (given[id])
        corrupt(format("id %u is both %s and %s", id, riftco::quoted(spec_.tokens[id]).c_str(),
                       riftco::quoted(content).c_str()));
      given[id] = true;
      spec_.tokens[id] = content;
    };
    for (const auto& [content, value] : vocab.items()) {
      const uint32_t id = id_of(value, riftco::quoted(content).c_str(), size);
      give(id, content);
      spec_.flags[id] = kModelToken;
    }
    for (const json& token : added) {
      const std::string& content = string_of(optional_field(token, "content"), "content");
      const uint32_t id = id_of(optional_field(token, "id"), riftco::quoted(content).c_str(), size);
      if (spec_.flags[id] != kModelToken || spec_.tokens[id] != content) give(id, content);
      spec_.flags[id] |= added_flags(token);
    }
    for (size_t id = 0; id < size; id++)
      if (!given[id]) corrupt(format("no token has the id %zu, but there are %zu tokens", id, size));
  }

  uint8_t added_flags(const json& token) const {
    const bool special = flag(token, "special", false);
    return uint8_t(
        kAddedToken | (special ? kSpecialToken : 0) | (flag(token, "single_word", false) ? kSingleWord : 0) |
        (flag(token, "lstrip", false) ? kStripLeft : 0) | (flag(token, "rstrip", false) ? kStripRight : 0) |
        (flag(token, "normalized", !special) ? kAfterNormalizer : 0));
  }

  // They stand for bytes, never for the text that spells them.
  void flag_byte_tokens() {
    for (size_t id = 0; id < spec_.tokens.size(); id++)
      if (spec_.flags[id] == kModelToken && named_byte(spec_.tokens[id])) spec_.flags[id] = kByteToken;
  }

  void read_merges(const json& merges) {
    spec_.merges.reserve(merges.size());
    for (size_t rank = 0; rank < merges.size(); rank++) {
      const json& merge = merges[rank];
      if (merge.is_string()) {
        spec_.merges.push_back(index_->merge(rank, merge.get_ref<const std::string&>()));
      } else if (merge.is_array() && merge.size() == 2) {
        spec_.merges.push_back(
            index_->merge(rank, string_of(merge[0], "merge"), string_of(merge[1], "merge")));
      } else {
        corrupt(format("merge %zu is neither a string nor a pair", rank));
      }
    }
  }

  void read_post_processor(const json& part) {
    if (part.is_null()) return;
    const std::string type = type_of(part, "post_processor");
    if (type == "ByteLevel") return;  // changes offsets only
    if (type == "TemplateProcessing") return read_template(part);
    if (type != "Sequence") unsupported(format("the post_processor %s", riftco::quoted(type).c_str()));
    for (const json& processor : field(part, "processors", json::value_t::array)) {
      if (type_of(processor, "post_processor") == "Sequence") unsupported("a Sequence in a post_processor");
      read_post_processor(processor);
    }
  }

  // "single" is a list with the text somewhere in it and special tokens around it.
  void read_template(const json& part) {
    const json& tokens = field(part, "special_tokens", json::value_t::object);
    bool after_text = false;
    for (const json& item : field(part, "single", json::value_t::array)) {
      if (item.is_object() && item.contains("Sequence")) {
        if (after_text) unsupported("a TemplateProcessing that repeats the text");
        after_text = true;
        continue;
      }
      const json& special = item.is_object() ? optional_field(item, "SpecialToken") : item;
      if (!special.is_object()) corrupt("an item of TemplateProcessing is neither Sequence nor SpecialToken");
      const std::string& name = string_of(optional_field(special, "id"), "id");
      const json& ids =
          field(field(tokens, name.c_str(), json::value_t::object), "ids", json::value_t::array);
      for (const json& id : ids)
        (after_text ? spec_.suffix : spec_.prefix)
            .push_back(id_of(id, riftco::quoted(name).c_str(), spec_.tokens.size()));
    }
    if (!after_text) unsupported("a TemplateProcessing without the text");
  }

  uint32_t named_token(const std::string& content, const char* name) const {
    const uint32_t id = index_->find(content);
    if (id == kNoToken)
      corrupt(format("%s is %s, which is not in the vocabulary", name, riftco::quoted(content).c_str()));
    return id;
  }

  // The content of a named token: a string, or an object with "content". Null when no file has it.
  const json& special_token(const json& config, const json& map, const char* name) const {
    const json& in_config = optional_field(config, name);
    const json& value = in_config.is_null() ? optional_field(map, name) : in_config;
    return value.is_object() ? optional_field(value, "content") : value;
  }
  std::optional<uint32_t> needed_token(const json& config, const json& map, const char* name) const {
    const json& content = special_token(config, map, name);
    return content.is_null() ? std::nullopt : std::optional(named_token(string_of(content, name), name));
  }
  // Padding and unknown tokens are only told; files name some that have no id.
  std::optional<uint32_t> told_token(const json& config, const json& map, const char* name) const {
    const json& content = special_token(config, map, name);
    const uint32_t id = content.is_null() ? kNoToken : index_->find(string_of(content, name));
    return id == kNoToken ? std::nullopt : std::optional(id);
  }

  void read_special_tokens() {
    const json none = json::object();
    const json config =
        files_.tokenizer_config.empty() ? none : parse(files_.tokenizer_config, "tokenizer_config.json");
    const json map = files_.special_tokens_map.empty()
                         ? none
                         : parse(files_.special_tokens_map, "special_tokens_map.json");
    spec_.special.bos = needed_token(config, map, "bos_token");
    spec_.special.eos = needed_token(config, map, "eos_token");
    spec_.special.unknown = told_token(config, map, "unk_token");
    spec_.special.pad = told_token(config, map, "pad_token");
    if (spec_.special.eos) add_end_of_generation(spec_.special, *spec_.special.eos);
    if (!files_.generation_config.empty()) read_generation_config();
    spec_.chat_template = files_.chat_template.empty()
                              ? chat_template_of(optional_field(config, "chat_template"))
                              : std::string(files_.chat_template);
  }

  void read_generation_config() {
    const json config = parse(files_.generation_config, "generation_config.json");
    const json& eos = optional_field(config, "eos_token_id");
    if (eos.is_null()) return;
    for (const json& value : eos.is_array() ? eos : json::array({eos})) {
      const uint32_t id = id_of(value, "eos_token_id", spec_.tokens.size());
      if (!spec_.special.eos) spec_.special.eos = id;
      add_end_of_generation(spec_.special, id);
    }
  }

  // A template, or a list of named ones of which "default" counts.
  std::string chat_template_of(const json& value) const {
    if (!value.is_array()) return value.is_null() ? std::string() : string_of(value, "chat_template");
    for (const json& named : value)
      if (named.is_object() && optional_field(named, "name") == "default")
        return string_of(optional_field(named, "template"), "chat_template");
    return {};
  }

  const HuggingFaceTokenizerFiles& files_;
  TokenizerSpec spec_;
  const TokenIndex* index_ = nullptr;  // of spec_.tokens, once they are read
};

}  // namespace

std::shared_ptr<const Tokenizer> tokenizer_from_hugging_face(const HuggingFaceTokenizerFiles& files,
                                                             const std::string& where) {
  TokenizerSpec spec = Importer(files, where).run();
  const char* kind = spec.spelling == Spelling::byte_level ? "bpe" : "sentencepiece";
  return make_tokenizer(kind, std::move(spec), where);
}

}  // namespace riftco
