// Importers and the native format: ids equal to the Hugging Face `tokenizers` package, and hostile files.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/tokenizer.h"

namespace riftco {
namespace {

using nlohmann::json;

std::string read_golden(const std::string& name) {
  const char* data = std::getenv("RIFTCO_TEST_DATA");  // tests/golden, set by meson
  const auto path = std::filesystem::path(data ? data : "") / "tokenizers" / name;
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::shared_ptr<const Tokenizer> import_json(const std::string& text) {
  return tokenizer_from_hugging_face({.tokenizer_json = text}, "test");
}

class TokenizerGolden : public testing::TestWithParam<const char*> {};

void expect_golden_ids(const Tokenizer& tokenizer, const json& cases) {
  ASSERT_GE(cases.size(), 100u);
  for (const json& golden : cases) {
    const std::string text = golden["text"];
    const std::vector<uint32_t> ids = golden["ids"], special_ids = golden.value("special_ids", ids),
                                added_ids = golden.value("added_ids", special_ids);
    EXPECT_EQ(tokenizer.encode(text), ids) << golden["text"];
    EXPECT_EQ(tokenizer.encode(text, {.parse_special = true}), special_ids) << golden["text"];
    EXPECT_EQ(tokenizer.encode(text, {.add_special = true, .parse_special = true}), added_ids)
        << golden["text"];
  }
}

TEST_P(TokenizerGolden, IdsEqualTheTokenizersPackage) {
  const std::string name = GetParam();
  const auto tokenizer = import_json(read_golden(name + ".tokenizer.json"));
  expect_golden_ids(*tokenizer, json::parse(read_golden(name + ".ids.json"))["cases"]);
}

TEST_P(TokenizerGolden, NativeJsonKeepsEverything) {
  const std::string name = GetParam();
  const auto tokenizer = import_json(read_golden(name + ".tokenizer.json"));
  const std::string text = tokenizer->to_json();
  const auto again = tokenizer_from_json(text, "test");
  EXPECT_EQ(again->to_json(), text);
  EXPECT_EQ(import_json(read_golden(name + ".tokenizer.json"))->to_json(), text);
  ASSERT_EQ(again->vocabulary_size(), tokenizer->vocabulary_size());
  for (uint32_t id = 0; id < again->vocabulary_size(); id++) {
    EXPECT_EQ(again->token_bytes(id), tokenizer->token_bytes(id));
    EXPECT_EQ(again->is_special(id), tokenizer->is_special(id));
  }
  expect_golden_ids(*again, json::parse(read_golden(name + ".ids.json"))["cases"]);
}

TEST_P(TokenizerGolden, WrittenFileGivesTheSameIds) {
  const std::string name = GetParam();
  const auto tokenizer = import_json(read_golden(name + ".tokenizer.json"));
  const auto again = import_json(to_tokenizer_json(*tokenizer));
  EXPECT_EQ(again->to_json(), tokenizer->to_json());
}

// What a GGUF file has of a SentencePiece model; ids equal to that package's.
GgufTokenizerMetadata sentence_piece_metadata(const json& golden) {
  GgufTokenizerMetadata m{.model = "llama"};
  for (const json& token : golden["tokens"]) m.tokens.push_back(token.get_ref<const std::string&>());
  m.token_types = golden["token_types"].get<std::vector<int64_t>>();
  m.scores = golden["scores"].get<std::vector<float>>();
  m.unknown_token_id = 0;
  m.bos_token_id = 1;
  m.eos_token_id = 2;
  return m;
}

TEST(SentencePieceGolden, IdsEqualTheSentencepiecePackage) {
  const json golden = json::parse(read_golden("sentencepiece.json"));
  const auto tokenizer = tokenizer_from_gguf(sentence_piece_metadata(golden), "test");
  ASSERT_GE(golden["cases"].size(), 100u);
  for (const json& item : golden["cases"]) {
    const std::string text = item["text"];
    const std::vector<uint32_t> ids = item["ids"];
    EXPECT_EQ(tokenizer->encode(text), ids) << item["text"];
    EXPECT_EQ(tokenizer->decode(ids), text);
  }
  EXPECT_EQ(tokenizer->encode("", {.add_special = true}), (std::vector<uint32_t>{1}));
  EXPECT_EQ(tokenizer_from_json(tokenizer->to_json(), "test")->to_json(), tokenizer->to_json());
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerGolden,
                         testing::Values("gpt2", "llama3", "smollm", "unknown", "qwen2", "tekken", "custom",
                                         "llama2", "mistral", "metaspace"),
                         [](const auto& test) { return std::string(test.param); });

// --- what a file may ask for ---

// A small tokenizer.json with everything that is supported.
const char kSmallFile[] = R"({
  "version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [
    {"id": 5, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
    {"id": 0, "content": "a", "special": true}],
  "normalizer": null,
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": true},
    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]},
  "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}}]},
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
    "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
    "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "\u0120ab": 4}, "merges": ["a b", ["\u0120", "ab"]]}
})";

struct Refusal {
  Status status = Status::ok;
  std::string message;
};
Refusal refusal_of(const std::function<void()>& call) {
  try {
    call();
    return {};
  } catch (const Error& error) {
    return {error.status(), error.what()};
  }
}

// The small file with one value replaced (or removed, when `value` is "").
std::string changed(const std::string& pointer, const std::string& value) {
  json root = json::parse(kSmallFile);
  const json::json_pointer at(pointer);
  if (value.empty() && root[at.parent_pointer()].is_array()) {
    root[at.parent_pointer()].erase(std::stoul(at.back()));
  } else if (value.empty()) {
    root[at.parent_pointer()].erase(at.back());
  } else {
    root[at] = json::parse(value);
  }
  return root.dump();
}

void expect_refusal(const std::string& pointer, const std::string& value, Status status,
                    const std::string& part) {
  const Refusal refusal = refusal_of([&] { import_json(changed(pointer, value)); });
  EXPECT_EQ(refusal.status, status) << pointer << " = " << value << ": " << refusal.message;
  EXPECT_NE(refusal.message.find(part), std::string::npos) << refusal.message;
  EXPECT_EQ(refusal.message.rfind("test: ", 0), 0u) << refusal.message;
}

TEST(TokenizerFiles, SmallFileIsRead) {
  const auto tokenizer = import_json(kSmallFile);
  EXPECT_EQ(tokenizer->vocabulary_size(), 6u);
  EXPECT_EQ(tokenizer->encode("ab abb<s>"), (std::vector<uint32_t>{2, 4, 1}));  // "<s>" has no bytes here
  EXPECT_EQ(tokenizer->encode("<s>b", {.add_special = true, .parse_special = true}),
            (std::vector<uint32_t>{5, 5, 1}));
  EXPECT_FALSE(tokenizer->adds_bos());  // no file says that <s> is BOS
  EXPECT_EQ(tokenizer->special().eos, std::nullopt);
}

TEST(TokenizerFiles, WhatIsNotBuiltIsRefusedByName) {
  constexpr Status kNo = Status::unsupported;
  expect_refusal("/normalizer", R"({"type": "NFKC"})", kNo, "normalizer \"NFKC\"");
  expect_refusal("/model/type", R"("Unigram")", kNo, "model type \"Unigram\"");
  expect_refusal("/model/dropout", "0.1", kNo, "dropout");
  expect_refusal("/model/byte_fallback", "true", kNo, "byte_fallback with ByteLevel");
  expect_refusal("/model/end_of_word_suffix", R"("</w>")", kNo, "end_of_word_suffix \"</w>\"");
  expect_refusal("/model/continuing_subword_prefix", R"("##")", kNo, "continuing_subword_prefix \"##\"");
  expect_refusal("/pre_tokenizer", "null", kNo, "no ByteLevel");
  expect_refusal("/pre_tokenizer", R"({"type": "Metaspace", "replacement": "_"})", kNo,
                 "another replacement");
  expect_refusal("/pre_tokenizer", R"({"type": "Whitespace"})", kNo, "\"Whitespace\"");
  expect_refusal("/pre_tokenizer", R"({"type": "ByteLevel"})", kNo, "add_prefix_space");
  expect_refusal("/pre_tokenizer/pretokenizers/1", R"({"type": "Digits"})", kNo, "no ByteLevel");
  const auto split = [](const char* pattern, const char* behavior) {
    return json{
        {"type", "Split"}, {"pattern", json::parse(pattern)}, {"behavior", behavior}, {"invert", false}}
        .dump();
  };
  const std::string first = "/pre_tokenizer/pretokenizers/0";
  expect_refusal(first, split(R"({"Regex": "[a-z&&b]+"})", "Isolated"), kNo, "an intersection");
  expect_refusal(first, split(R"({"String": " "})", "Isolated"), kNo, "plain string");
  expect_refusal(first, split(R"({"Regex": "\\p{N}"})", "Removed"), kNo, "behavior \"Removed\"");
  EXPECT_EQ(import_json(changed(first, split(R"({"Regex": "\\p{N}"})", "Isolated")))->to_json(),
            import_json(kSmallFile)->to_json());
  expect_refusal("/post_processor", R"({"type": "BertProcessing"})", kNo, "\"BertProcessing\"");
  expect_refusal("/post_processor/processors/1/single/1", "", kNo, "without the text");
  expect_refusal("/decoder", R"({"type": "WordPiece"})", kNo, "decoder \"WordPiece\"");
}

TEST(TokenizerFiles, ContradictionsAreCorrupt) {
  constexpr Status kBad = Status::corrupt_data;
  expect_refusal("/model", "", kBad, "model is null, not object");
  expect_refusal("/model/vocab", "[]", kBad, "vocab is array, not object");
  expect_refusal("/model/vocab", "{}", kBad, "");
  expect_refusal("/model/vocab/b", "6", kBad, "the id of \"b\" is 6, but there are 6 tokens");
  expect_refusal("/model/vocab/b", "-1", kBad, "the id of \"b\" is not a whole number");
  expect_refusal("/model/vocab/b", "18446744073709551615", kBad, "18446744073709551615");
  expect_refusal("/model/vocab/b", "0.5", kBad, "not a whole number");
  expect_refusal("/model/vocab/b", "2", kBad, "id 2 is both \"ab\" and \"b\"");
  expect_refusal("/model/vocab/b", "5", kBad, "id 5 is both \"b\" and \"<s>\"");
  expect_refusal("/model/vocab/ab", "", kBad, "the id of");  // a gap: five tokens, ids up to 5
  expect_refusal("/added_tokens/0/id", "1", kBad, "id 1 is both \"b\" and \"<s>\"");
  expect_refusal("/added_tokens/0/content", R"("")", kBad, "has 0 bytes");
  expect_refusal("/added_tokens/0", "null", kBad, "");
  expect_refusal("/added_tokens", "{}", kBad, "added_tokens is not an array");
  expect_refusal("/model/merges/0", R"("a c")", kBad, "merge 0 names \"c\"");
  expect_refusal("/model/merges/0", R"("b a")", kBad, "merge 0 makes \"ba\"");
  expect_refusal("/model/merges/0", R"("ab")", kBad, "not two tokens and a space");
  expect_refusal("/model/merges/0", R"("a b ")", kBad, "not two tokens and a space");
  expect_refusal("/model/merges/0", R"(["a", "b", "a"])", kBad, "merge 0 is neither");
  expect_refusal("/model/unk_token", R"("<unk>")", kBad, "unk_token is \"<unk>\"");
  expect_refusal("/post_processor/processors/1/special_tokens/<s>/ids", "[9]", kBad,
                 "the id of \"<s>\" is 9");
  expect_refusal("/post_processor/processors/1/special_tokens", "{}", kBad, "<s> is null");
  std::string twice = kSmallFile;
  twice.replace(twice.find("\"ab\": 2"), 7, "\"a\": 2");
  EXPECT_EQ(refusal_of([&] { import_json(twice); }).status, kBad);
}

// Every cut and every damaged byte gives an error or a tokenizer, never anything else.
TEST(TokenizerFiles, DamagedFilesAreRefusedCleanly) {
  for (const std::string& text : {std::string(kSmallFile), import_json(kSmallFile)->to_json()}) {
    const bool native = text != kSmallFile;
    const auto read = [&](const std::string& damaged) {
      const auto tokenizer = native ? tokenizer_from_json(damaged, "test") : import_json(damaged);
      tokenizer->encode("ab 12 <s>", {.add_special = true, .parse_special = true});
    };
    for (size_t cut = 0; cut < text.size(); cut++) {
      const Refusal refusal = refusal_of([&] { read(text.substr(0, cut)); });
      EXPECT_EQ(refusal.status, Status::corrupt_data) << "cut at " << cut;
    }
    for (size_t at = 0; at < text.size(); at++)
      for (const char byte : {'\0', '"', '9', '}', '\xFF'}) {
        std::string damaged = text;
        damaged[at] = byte;
        const Refusal refusal = refusal_of([&] { read(damaged); });
        EXPECT_TRUE(refusal.status == Status::ok || refusal.status == Status::corrupt_data ||
                    refusal.status == Status::unsupported || refusal.status == Status::version_mismatch)
            << refusal.message;
      }
  }
  const std::string deep(100'000, '[');
  EXPECT_EQ(refusal_of([&] { import_json(deep); }).status, Status::corrupt_data);
  EXPECT_EQ(refusal_of([&] { import_json("[]"); }).status, Status::corrupt_data);
  EXPECT_EQ(refusal_of([&] { import_json(""); }).status, Status::corrupt_data);
}

TEST(TokenizerFiles, NativeJsonIsChecked) {
  const json good = json::parse(import_json(kSmallFile)->to_json());
  const auto refused = [&](const char* name, const json& value) {
    json root = good;
    root[name] = value;
    return refusal_of([&] { tokenizer_from_json(root.dump(), "test"); });
  };
  for (const auto& [name, value] : good.items()) {
    json root = good;
    root.erase(name);
    EXPECT_EQ(refusal_of([&] { tokenizer_from_json(root.dump(), "test"); }).status, Status::corrupt_data)
        << name;
    EXPECT_EQ(refused(name.c_str(), {{"x", 1}}).status, Status::corrupt_data) << name;
    if (value.is_array() && !value.empty() && value[0].is_number())
      for (const char* number : {"-1", "4294967296", "18446744073709551615", "1.5", "[]"}) {
        json damaged = value;
        damaged.back() = json::parse(number);
        EXPECT_EQ(refused(name.c_str(), damaged).status, Status::corrupt_data) << name << " " << number;
      }
  }
  EXPECT_EQ(refused("version", 3).status, Status::version_mismatch);
  EXPECT_EQ(refused("kind", "unigram").status, Status::unsupported);
  EXPECT_EQ(refused("flags", {99, 1}).status, Status::corrupt_data);
  EXPECT_EQ(refused("merges", {1}).status, Status::corrupt_data);
  EXPECT_EQ(refused("prefix", {6}).status, Status::corrupt_data);
  EXPECT_EQ(refused("pre_tokenizer", {"other"}).status, Status::unsupported);
  EXPECT_EQ(refused("pre_tokenizer", json::array_t(9, "gpt2")).status, Status::corrupt_data);
}

TEST(TokenizerFiles, OtherFilesNameTheSpecialTokens) {
  const auto read = [](std::string_view config, std::string_view map, std::string_view generation,
                       std::string_view chat_template = {}) {
    return tokenizer_from_hugging_face({kSmallFile, config, map, generation, chat_template}, "test");
  };
  auto tokenizer =
      read(R"({"bos_token": "<s>", "eos_token": {"content": "a"}, "chat_template": "one"})",
           R"({"eos_token": "b", "pad_token": "b"})", R"({"eos_token_id": [1, 0], "bos_token_id": 5})");
  EXPECT_EQ(tokenizer->special().bos, 5u);
  EXPECT_EQ(tokenizer->special().eos, 0u);
  EXPECT_EQ(tokenizer->special().pad, 1u);
  EXPECT_EQ(tokenizer->special().unknown, std::nullopt);
  EXPECT_EQ(tokenizer->special().end_of_generation, (std::vector<uint32_t>{0, 1}));
  EXPECT_TRUE(tokenizer->is_end_of_generation(1));
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->chat_template(), "one");
  EXPECT_EQ(tokenizer_from_json(tokenizer->to_json(), "test")->to_json(), tokenizer->to_json());

  tokenizer =
      read(R"({"chat_template": [{"name": "x", "template": "1"}, {"name": "default", "template": "2"}]})", "",
           R"({"eos_token_id": 1})");
  EXPECT_EQ(tokenizer->chat_template(), "2");
  EXPECT_EQ(tokenizer->special().eos, 1u);
  EXPECT_EQ(read(R"({"pad_token": "<none>"})", "", "")->special().pad, std::nullopt);
  EXPECT_EQ(read(R"({"chat_template": "one"})", "", "", "file")->chat_template(), "file");
  EXPECT_EQ(refusal_of([&] { read(R"({"eos_token": "<none>"})", "", ""); }).message,
            "test: eos_token is \"<none>\", which is not in the vocabulary");
  EXPECT_EQ(refusal_of([&] { read("", "", R"({"eos_token_id": 6})"); }).status, Status::corrupt_data);
  EXPECT_EQ(refusal_of([&] { read("", "", R"({"eos_token_id": "a"})"); }).status, Status::corrupt_data);
  EXPECT_EQ(refusal_of([&] { read("[", "", ""); }).status, Status::corrupt_data);
}

// --- GGUF metadata ---

GgufTokenizerMetadata small_gguf() {
  GgufTokenizerMetadata m;
  m.model = "gpt2";
  m.pre = "smollm";
  m.tokens = {"a", "b", "ab", "\u0120", "\u0120ab", "<s>", "[x]", "unused", "1"};
  m.merges = {"a b", "\u0120 ab"};
  m.token_types = {1, 1, 1, 1, 1, 3, 4, 5, 1};
  m.bos_token_id = 5;
  m.eos_token_id = 0;
  m.eot_token_id = 1;
  m.eom_token_id = 0;
  m.chat_template = "{{ x }}";
  return m;
}

TEST(TokenizerFiles, GgufMetadata) {
  auto m = small_gguf();
  auto tokenizer = tokenizer_from_gguf(m, "test");
  EXPECT_EQ(tokenizer->encode("ab ab<s>[x]11", {.add_special = true}),
            (std::vector<uint32_t>{2, 4, 6, 8, 8}));
  EXPECT_EQ(tokenizer->encode("<s>", {.parse_special = true}), (std::vector<uint32_t>{5}));
  EXPECT_EQ(tokenizer->token_bytes(4), " ab");
  EXPECT_EQ(tokenizer->token_bytes(7), "unused");
  EXPECT_EQ(tokenizer->find("unused"), std::nullopt);
  EXPECT_EQ(tokenizer->special().end_of_generation, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(tokenizer->chat_template(), "{{ x }}");
  EXPECT_EQ(tokenizer_from_json(tokenizer->to_json(), "test")->to_json(), tokenizer->to_json());
  m.add_bos_token = m.add_eos_token = true;
  EXPECT_EQ(tokenizer_from_gguf(m, "test")->encode("a", {.add_special = true}),
            (std::vector<uint32_t>{5, 0, 0}));
  m = small_gguf();
  m.pre = "llama-bpe";
  EXPECT_TRUE(tokenizer_from_gguf(m, "test")->adds_bos());
  m.add_bos_token = false;
  EXPECT_FALSE(tokenizer_from_gguf(m, "test")->adds_bos());
  m.token_types.clear();
  EXPECT_FALSE(tokenizer_from_gguf(m, "test")->is_special(5));
}

TEST(TokenizerFiles, GgufMetadataIsChecked) {
  const auto refuse = [](Status status, const std::string& part, const auto& change) {
    GgufTokenizerMetadata m = small_gguf();
    change(m);
    const Refusal refusal = refusal_of([&] { tokenizer_from_gguf(m, "test"); });
    EXPECT_EQ(refusal.status, status) << refusal.message;
    EXPECT_NE(refusal.message.find(part), std::string::npos) << refusal.message;
    EXPECT_EQ(refusal.message.rfind("test: ", 0), 0u) << refusal.message;
  };
  constexpr Status kNo = Status::unsupported, kBad = Status::corrupt_data;
  refuse(kNo, "tokenizer.ggml.model is \"t5\"", [](auto& m) { m.model = "t5"; });
  refuse(kBad, "9 tokens but 0 tokenizer.ggml.scores", [](auto& m) { m.model = "llama"; });
  refuse(kBad, "not a number", [](auto& m) {
    m.model = "llama";
    m.scores.assign(9, NAN);
  });
  refuse(kBad, "token 0 (\"a\") names no byte", [](auto& m) {
    m.model = "llama";
    m.scores.resize(9);
    m.token_types[0] = 6;
  });
  refuse(kNo, "tokenizer.ggml.pre is \"default\"", [](auto& m) { m.pre = "default"; });
  refuse(kNo, "tokenizer.ggml.pre is \"\"", [](auto& m) { m.pre = ""; });
  refuse(kNo, "add_space_prefix", [](auto& m) { m.add_space_prefix = true; });
  refuse(kNo, "token 0 has the type 6", [](auto& m) { m.token_types[0] = 6; });
  refuse(kNo, "token 0 has the type -1", [](auto& m) { m.token_types[0] = -1; });
  refuse(kBad, "9 tokens but 8 token types", [](auto& m) { m.token_types.pop_back(); });
  refuse(kBad, "tokens 0 and 1 are both \"a\"", [](auto& m) { m.tokens[1] = "a"; });
  refuse(kBad, "is not UTF-8", [](auto& m) { m.tokens[8] = "\xFF"; });
  refuse(kBad, "a vocabulary of 0", [](auto& m) { m = {.model = "gpt2", .pre = "gpt-2"}; });
  refuse(kBad, "eos_token_id is 9, but there are 9 tokens", [](auto& m) { m.eos_token_id = 9; });
  refuse(kBad, "bos_token_id is 18446744073709551615", [](auto& m) { m.bos_token_id = UINT64_MAX; });
  refuse(kBad, "merge 1 names \"c\"", [](auto& m) { m.merges[1] = "c a"; });
  refuse(kBad, "merge 1 is \"a\"", [](auto& m) { m.merges[1] = "a"; });
  refuse(kBad, "add_bos_token without bos_token_id", [](auto& m) {
    m.bos_token_id.reset();
    m.add_bos_token = true;
  });
}

}  // namespace
}  // namespace riftco
