// Importers and the native format: ids equal to the Hugging Face `tokenizers` package, and hostile files.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/json.h"
#include "text/tokenizer.h"

namespace riftco {
namespace {

using nlohmann::json;

std::string read_golden(const std::string& name) {
  const auto path = std::filesystem::path(std::getenv("RIFTCO_TEST_DATA")) / "tokenizers" / name;
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::shared_ptr<const Tokenizer> import_json(const std::string& text) {
  return tokenizer_from_hugging_face({.tokenizer_json = text}, "test");
}

class TokenizerGolden : public testing::TestWithParam<const char*> {};

void expect_golden_ids(const Tokenizer& tokenizer, const json& cases) {
  ASSERT_GT(cases.size(), 100u);
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

INSTANTIATE_TEST_SUITE_P(All, TokenizerGolden, testing::Values("gpt2", "llama3", "smollm", "unknown"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace riftco
