#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "model/config.h"
#include "model/weights.h"

namespace riftco {
namespace {

ModelConfig llama_like() {
  ModelConfig c;
  c.kv_head_count = 2;
  c.position = PositionKind::rotary;
  c.rotary_width = c.head_width;
  c.rotary_base = 500000.0;
  c.norm = NormKind::rms;
  c.norm_epsilon = 1e-6;
  c.activation = Activation::silu_gated;
  c.biases = 0;
  c.tied_head = true;
  return c;
}

TEST(Config, JsonRoundTripsAndIsDeterministic) {
  for (const ModelConfig& c : {ModelConfig(), llama_like()}) {
    const std::string json = config_to_json(c);
    EXPECT_EQ(config_from_json(json, "a test"), c);
    EXPECT_EQ(config_to_json(config_from_json(json, "a test")), json);
  }
}

TEST(Config, RefusesWhatCannotBeComputedNamingTheValue) {
  struct Case {
    std::function<void(ModelConfig&)> change;
    const char* message;
  };
  const Case cases[] = {
      {[](ModelConfig& c) { c.width = 0; }, "here: width is 0, not in 1 .. 16777216"},
      {[](ModelConfig& c) { c.layer_count = 5000; }, "here: layer_count is 5000, not in 1 .. 4096"},
      {[](ModelConfig& c) { c.kv_head_count = 3; }, "here: kv_head_count 3 does not divide head_count 4"},
      {[](ModelConfig& c) { c.head_width = 2000; }, "here: head_width is 2000, not in 1 .. 1024"},
      {[](ModelConfig& c) { c.head_count = c.kv_head_count = 1 << 20; },
       "here: head_count 1048576 times head_width 32 exceeds 16777216"},
      {[](ModelConfig& c) { c.rotary_width = 3; },
       "here: rotary_width 3 is not an even number in 2 .. head_width 32"},
      {[](ModelConfig& c) { c.rotary_width = 34; },
       "here: rotary_width 34 is not an even number in 2 .. head_width 32"},
      {[](ModelConfig& c) { c.rotary_base = 0.5; }, "here: rotary_base 0.5 is not in 1 .. 1e12"},
      {[](ModelConfig& c) { c.position = PositionKind::learned; },
       "here: rotary_width is 32 with learned positions"},
      {[](ModelConfig& c) { c.norm_epsilon = -1; }, "here: norm_epsilon -1 is not in 0 .. 1"},
      {[](ModelConfig& c) { c.biases = 512; }, "here: biases 0x200 names unknown projections"},
      {[](ModelConfig& c) {
         c.activation = Activation::gelu_erf;
         c.biases = kBiasGate;
       },
       "here: biases 0x20 names the gate of a model without one"},
      {[](ModelConfig& c) { c.norm = NormKind(7); }, "here: norm 7 is not known"},
  };
  for (const Case& test : cases) {
    ModelConfig c = llama_like();
    test.change(c);
    try {
      validate(c, Status::invalid_argument, "here");
      ADD_FAILURE() << test.message;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::invalid_argument);
      EXPECT_STREQ(error.what(), test.message);
    }
  }
}

TEST(Config, RefusesBadJson) {
  const std::string good = config_to_json(ModelConfig());
  auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text :
       {std::string("[]"), std::string("{}"), with("\"width\":128", "\"width\":-1"),
        with("\"width\":128", "\"width\":1.5"), with("\"width\":128", "\"width\":4294967424"),
        with("\"layer\"", "\"batch\""), with("false", "0"), with("\"learned\"", "3"),
        good.substr(0, good.size() - 1)}) {
    try {
      config_from_json(text, "f.rift");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::corrupt_data) << text;
      EXPECT_NE(std::string(error.what()).find("f.rift"), std::string::npos) << error.what();
    }
  }
}

TEST(Config, CountsParameters) {
  ModelConfig c;  // GPT-2's own count: its head is tied and has no bias
  c.vocabulary_size = 50257;
  c.maximum_context = 1024;
  c.layer_count = c.head_count = c.kv_head_count = 12;
  c.width = 768;
  c.head_width = 64;
  c.mlp_width = 3072;
  c.tied_head = true;
  c.biases &= ~uint32_t(kBiasHead);
  EXPECT_EQ(parameter_count(c), 124439808u);
}

}  // namespace
}  // namespace riftco
