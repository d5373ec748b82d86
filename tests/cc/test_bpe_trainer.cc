// Merges equal to the `tokenizers` package's trainer; limits, cancelling.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/bpe_trainer.h"

namespace riftco {
namespace {

using nlohmann::json;

std::shared_ptr<const Tokenizer> train(const std::vector<std::string>& texts, const TrainOptions& options) {
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  Progress progress("training");
  return train_tokenizer(views, options, progress);
}

TEST(BpeTrainer, MergesEqualTheTokenizersPackage) {
  const char* data = std::getenv("RIFTCO_TEST_DATA");
  std::ifstream file(std::filesystem::path(data ? data : "") / "tokenizers" / "trained.json");
  const json golden = json::parse(file);
  const auto texts = golden["texts"].get<std::vector<std::string>>();
  ASSERT_EQ(golden["cases"].size(), 4u);
  for (const json& item : golden["cases"]) {
    TrainOptions options{.vocabulary_size = item["vocabulary_size"],
                         .minimum_count = item["minimum_count"],
                         .special_tokens = {"<end>", "aa"}};
    if (item["pre_tokenizer"] == "smollm")
      options.stages.insert(options.stages.begin(), PreTokenizerStage::digits);
    const auto tokenizer = train(texts, options);
    const TokenizerSpec spec = tokenizer->spec();
    EXPECT_EQ(spec.tokens.size(), item["token_count"]);
    EXPECT_EQ(spec.tokens.back(), item["last_token"]);
    EXPECT_EQ(spec.merges.size(), item["merge_count"]);
    const auto merges = item["merges"].get<std::vector<std::vector<uint32_t>>>();
    ASSERT_LE(merges.size(), spec.merges.size());
    for (size_t i = 0; i < merges.size(); i++)
      ASSERT_EQ((std::vector{spec.merges[i].left, spec.merges[i].right}), merges[i]) << i;
  }
}

TEST(BpeTrainer, TextsMayComeInAnyOrderAndAreAnyBytes) {
  const std::vector<std::string> texts = {"low lower lowest", "\xFF\xFE new newer \xFF", "", "lower newest"};
  const TrainOptions options{.vocabulary_size = 280};
  const std::vector<std::string> turned(texts.rbegin(), texts.rend());
  const auto tokenizer = train(texts, options);
  EXPECT_EQ(train(turned, options)->to_json(), tokenizer->to_json());
  for (const std::string& text : texts) EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_EQ(train({}, options)->vocabulary_size(), 256u);
}

TEST(BpeTrainer, RefusesWhatCannotBe) {
  const auto status = [](const TrainOptions& options) {
    try {
      train({"a"}, options);
      return Status::ok;
    } catch (const Error& error) {
      return error.status();
    }
  };
  EXPECT_EQ(status({.vocabulary_size = 255}), Status::out_of_range);
  EXPECT_EQ(status({.vocabulary_size = 256, .special_tokens = {"x"}}), Status::out_of_range);
  EXPECT_EQ(status({.vocabulary_size = kMaxVocabulary + 1}), Status::out_of_range);
  EXPECT_EQ(status({.special_tokens = {""}}), Status::invalid_argument);
  EXPECT_EQ(status({.special_tokens = {"\xFF"}}), Status::invalid_argument);
  EXPECT_EQ(status({.special_tokens = {"x", "x"}}), Status::invalid_argument);
  EXPECT_EQ(status({}), Status::ok);
}

}  // namespace
}  // namespace riftco
