#include "text/hugging_face_pipeline.h"

#include "text/json_fields.h"

namespace riftco {
namespace {

class PipelineReader : JsonFields {
 public:
  PipelineReader(TokenizerSpec& spec, const std::string& where) : JsonFields(where), spec_(spec) {}

  void run(const json& root) {
    for_each(optional_field(root, "normalizer"), "normalizer", "normalizers",
             [&](const json& part, const std::string& type) { read_normalizer(part, type); });
    if (spec_.normalizer.size() > kMaxNormalizerSteps) corrupt("the normalizer has too many steps");
    for_each(optional_field(root, "pre_tokenizer"), "pre_tokenizer", "pretokenizers",
             [&](const json& part, const std::string& type) { read_pre_tokenizer(part, type); });
    if (spec_.stages.size() > kMaxPreTokenizerStages) corrupt("the pre_tokenizer has too many steps");
    if (!is_byte_level_) check_sentence_piece();
    read_decoder(optional_field(root, "decoder"));
  }

 private:
  // Calls on_part for the one part, or for each of a Sequence.
  template <class OnPart>
  void for_each(const json& part, const char* name, const char* list, const OnPart& on_part) const {
    if (part.is_null()) return;
    if (const std::string type = type_of(part, name); type != "Sequence") return on_part(part, type);
    for (const json& item : field(part, list, json::value_t::array)) {
      const std::string type = type_of(item, name);
      if (type == "Sequence") unsupported(format("a Sequence in a Sequence in the %s", name));
      on_part(item, type);
    }
  }

  void read_normalizer(const json& part, const std::string& type) {
    using enum NormalizerStep::Kind;
    if (type == "NFC") {
      spec_.normalizer.push_back({nfc});
    } else if (type == "Prepend") {
      spec_.normalizer.push_back({prepend, {}, string_of(optional_field(part, "prepend"), "prepend")});
    } else if (type == "Replace") {
      spec_.normalizer.push_back({replace, plain_pattern(part, "the normalizer Replace"),
                                  string_of(optional_field(part, "content"), "content")});
    } else {
      unsupported(format("the normalizer %s", riftco::quoted(type).c_str()));
    }
  }

  const std::string& plain_pattern(const json& part, const char* what) const {
    const json& pattern = optional_field(field(part, "pattern", json::value_t::object), "String");
    if (pattern.is_null()) unsupported(format("%s with a regular expression", what));
    return string_of(pattern, "pattern");
  }

  void read_pre_tokenizer(const json& part, const std::string& type) {
    if (is_byte_level_ || spec_.space_prefix != SpacePrefix::none)
      unsupported(format("the pre_tokenizer %s at this place", riftco::quoted(type).c_str()));
    if (type == "Digits") {
      spec_.stages.push_back(flag(part, "individual_digits", false) ? PreTokenizerStage::digits
                                                                    : PreTokenizerStage::digit_runs);
    } else if (type == "Split") {
      spec_.stages.push_back(split_stage(part));
    } else if (type == "ByteLevel") {
      is_byte_level_ = true;
      if (flag(part, "add_prefix_space", true)) unsupported("add_prefix_space");
      if (flag(part, "use_regex", true)) spec_.stages.push_back(PreTokenizerStage::gpt2);
    } else if (type == "Metaspace") {
      read_metaspace(part);
    } else {
      unsupported(format("the pre_tokenizer %s", riftco::quoted(type).c_str()));
    }
  }

  PreTokenizerStage split_stage(const json& part) const {
    const json& pattern = optional_field(field(part, "pattern", json::value_t::object), "Regex");
    if (pattern.is_null()) unsupported("a Split by a plain string");
    PreTokenizerStage stage = stage_from_regex(string_of(pattern, "pattern"));
    // The patterns we know leave nothing between matches: keeping only matches keeps all.
    const std::string& behavior = string_of(optional_field(part, "behavior"), "behavior");
    const bool inverted = flag(part, "invert", false), is_known = stage.kind != PreTokenizerStage::pattern;
    if (!(behavior == "Isolated" && !inverted) && !(behavior == "Removed" && inverted && is_known))
      unsupported(format("a Split with behavior %s%s", riftco::quoted(behavior).c_str(),
                         inverted ? " and invert" : ""));
    return stage;
  }

  void read_metaspace(const json& part) {
    if (string_of(optional_field(part, "replacement"), "replacement") != kSpaceMark)
      unsupported("a Metaspace with another replacement than U+2581");
    if (!spec_.stages.empty()) unsupported("a Metaspace behind another pre_tokenizer");
    const bool old_prefix = flag(part, "add_prefix_space", true);
    const json& scheme = optional_field(part, "prepend_scheme");
    const std::string name =
        scheme.is_null() ? (old_prefix ? "always" : "never") : string_of(scheme, "prepend_scheme");
    if (name != "always" && name != "first" && name != "never")
      corrupt(format("prepend_scheme is %s", riftco::quoted(name).c_str()));
    spec_.space_prefix = name == "always"  ? SpacePrefix::every
                         : name == "first" ? SpacePrefix::first
                                           : SpacePrefix::never;
    if (flag(part, "split", true)) spec_.stages.push_back(PreTokenizerStage::space_marks);
  }

  // Spaces must become U+2581 somewhere.
  void check_sentence_piece() {
    bool marks = spec_.space_prefix != SpacePrefix::none;
    for (const NormalizerStep& step : spec_.normalizer)
      marks |= step.kind == NormalizerStep::Kind::replace && step.from == " " && step.to == kSpaceMark;
    if (!marks) unsupported("no ByteLevel in the pre_tokenizer and no U+2581 for spaces");
    spec_.spelling = Spelling::sentence_piece;
  }

  void read_decoder(const json& part) {
    if (is_byte_level_) {
      if (!part.is_null() && type_of(part, "decoder") != "ByteLevel")
        unsupported(format("the decoder %s", riftco::quoted(type_of(part, "decoder")).c_str()));
      return;
    }
    bool marks = false;
    for_each(part, "decoder", "decoders", [&](const json& step, const std::string& type) {
      if (type == "Replace") {
        marks |= plain_pattern(step, "the decoder Replace") == kSpaceMark;
        if (!marks || optional_field(step, "content") != " ")
          unsupported("a decoder Replace of another text");
      } else if (type == "Strip") {
        spec_.strips_first_space = true;
        if (optional_field(step, "content") != " " || optional_field(step, "start") != 1 ||
            optional_field(step, "stop") != 0)
          unsupported("a decoder Strip of more than one space at the beginning");
      } else if (type != "ByteFallback" && type != "Fuse") {
        unsupported(format("the decoder %s", riftco::quoted(type).c_str()));
      }
    });
    if (!marks) unsupported("a decoder that does not replace U+2581");
  }

  TokenizerSpec& spec_;
  bool is_byte_level_ = false;
};

}  // namespace

void read_pipeline(TokenizerSpec& spec, const nlohmann::json& root, const std::string& where) {
  PipelineReader(spec, where).run(root);
}

}  // namespace riftco
