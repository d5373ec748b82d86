#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "model/config.h"
#include "model/rotary.h"
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

ModelConfig with_everything() {
  ModelConfig c = llama_like();
  c.rotary_scaling = RotaryScaling::yarn;
  c.rotary_original_context = 128;
  c.rotary_factor = 2.5;
  c.rotary_slow_rotations = 0.5;
  c.rotary_fast_rotations = 32;
  c.rotary_attention_factor = 1.25;
  c.sliding_window = 9;
  c.first_window_layer = 3;
  c.qk_norm = true;
  return c;
}

TEST(Config, JsonRoundTripsAndIsDeterministic) {
  for (const ModelConfig& c : {ModelConfig(), llama_like(), with_everything()}) {
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
      {[](ModelConfig& c) { c.rotary_scaling = RotaryScaling(5); }, "here: rotary_scaling 5 is not known"},
      {[](ModelConfig& c) { c.rotary_factor = 2; }, "here: rotary_factor 2 does not fit rotary_scaling none"},
      {[](ModelConfig& c) { c.rotary_original_context = 1; },
       "here: rotary_original_context 1 does not fit rotary_scaling none"},
      {[](ModelConfig& c) {
         c.rotary_scaling = RotaryScaling::linear;
         c.rotary_factor = 0;
       },
       "here: rotary_factor 0 does not fit rotary_scaling linear"},
      {[](ModelConfig& c) {
         c = with_everything();
         c.rotary_original_context = 0;
       },
       "here: rotary_original_context 0 does not fit rotary_scaling yarn"},
      {[](ModelConfig& c) {
         c = with_everything();
         c.rotary_fast_rotations = 0.5;
       },
       "here: rotary_fast_rotations 0.5 does not fit rotary_scaling yarn"},
      {[](ModelConfig& c) {
         c = with_everything();
         c.rotary_attention_factor = std::nan("");
       },
       "here: rotary_attention_factor nan does not fit rotary_scaling yarn"},
      {[](ModelConfig& c) {
         c = with_everything();
         c.rotary_base = 1;
       },
       "here: rotary_base 1 does not fit rotary_scaling yarn"},
      {[](ModelConfig& c) {
         c = with_everything();
         c.position = PositionKind::learned;
         c.rotary_width = 0;
       },
       "here: rotary_scaling is yarn with learned positions"},
      {[](ModelConfig& c) { c.sliding_window = UINT32_MAX; },
       "here: sliding_window 4294967295 exceeds 16777216"},
      {[](ModelConfig& c) {
         c.sliding_window = 5;
         c.first_window_layer = 4;
       },
       "here: first_window_layer is 4 with a sliding_window of 5 and 4 layers"},
      {[](ModelConfig& c) { c.first_window_layer = 1; },
       "here: first_window_layer is 1 with a sliding_window of 0 and 4 layers"},
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

TEST(Config, RefusesFieldsThatALaterReleaseAdded) {
  std::string text = config_to_json(ModelConfig());
  text.insert(1, "\"softcap\":30,");
  try {
    config_from_json(text, "f.rift");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::unsupported);
    EXPECT_STREQ(error.what(), "f.rift: the config's \"softcap\" is not known");
  }
}

// Values of transformers 5.24 (modeling_rope_utils), in float32.
TEST(Config, RotaryFrequenciesAreThoseOfTransformers) {
  ModelConfig c = llama_like();
  c.rotary_width = 16;
  const auto expect = [&](std::vector<double> want) {
    const std::vector<double> got = rotary_frequencies(c, std::vector<float>(8, 2.0f));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); i++) EXPECT_NEAR(got[i], want[i], 4e-7 * want[i]) << i;
  };
  c.rotary_scaling = RotaryScaling::factors;
  expect({0.5, 0.0969613791, 0.0188030154, 0.00364633254, 0.000707106723, 0.000137124094, 2.65914787e-05,
          5.15669262e-06});
  c.rotary_scaling = RotaryScaling::linear, c.rotary_factor = 4;
  expect({0.25, 0.0484806895, 0.00940150768, 0.00182316627, 0.000353553361, 6.85620471e-05, 1.32957393e-05,
          2.57834631e-06});
  c.rotary_scaling = RotaryScaling::llama3, c.rotary_factor = 8, c.rotary_original_context = 8192;
  c.rotary_slow_rotations = 1, c.rotary_fast_rotations = 4;
  expect({1, 0.193922758, 0.0376060307, 0.00729266508, 0.000524846022, 3.42810235e-05, 6.64786967e-06,
          1.28917316e-06});
  c.rotary_scaling = RotaryScaling::yarn, c.rotary_original_context = 4096;
  c.rotary_slow_rotations = 1, c.rotary_fast_rotations = 32;
  expect({1, 0.193922758, 0.0266376045, 0.00303861033, 0.000176776681, 3.42810235e-05, 6.64786967e-06,
          1.28917316e-06});
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
