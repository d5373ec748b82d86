// Adapters, and the rules between serving a model and changing it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>

#include "model/lora.h"
#include "model/save.h"
#include "serve/decode_session.h"
#include "serve/generation.h"
#include "serve/session_file.h"
#include "serve_support.h"

namespace riftco {
namespace {

using test::failure_of;
using Floats = std::vector<float>;

constexpr uint32_t kLength = 40;
constexpr uint32_t kAll = 255;

Floats logits_of(const std::shared_ptr<DecoderOnlyTransformer>& model) {
  const auto tokens = test::random_tokens(kLength, model->config().vocabulary_size, 5);
  Floats logits(size_t(kLength) * model->config().vocabulary_size);
  sequence_logits(model, tokens, nullptr, logits);
  return logits;
}

Floats parameter(const DecoderOnlyTransformer& model, const std::string& name) {
  const ParameterInfo& p = model.parameter(name);
  Floats values(size_t(p.rows) * p.columns);
  model.read_parameter(name, values.data());
  return values;
}

void attach(DecoderOnlyTransformer& model, const LoraOptions& options) {
  ModelChange change(model, "attaching adapters");
  attach_lora(change, options);
}
void detach(DecoderOnlyTransformer& model) {
  ModelChange change(model, "detaching adapters");
  detach_lora(change);
}
void merge(DecoderOnlyTransformer& model) {
  ModelChange change(model, "merging adapters");
  merge_lora(change);
}
void write(DecoderOnlyTransformer& model, const std::string& name, const Floats& values) {
  ModelChange change(model, "writing a parameter");
  change.write_parameter(name, values);
}

void expect_failure(const test::Failure& failure, Status status, const char* part) {
  EXPECT_EQ(int(failure.status), int(status)) << failure.message;
  EXPECT_NE(failure.message.find(part), std::string::npos) << failure.message << "\nlacks " << part;
}

double largest_difference(const Floats& a, const Floats& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(double(a[i]) - b[i]));
  return most;
}

// --- attaching

TEST(Lora, AttachedAdaptersChangeNothing) {
  for (const DType type : {DType::f32, DType::bf16, DType::q4_0}) {
    const auto model = test::random_model(test::llama_config(), type);
    const Floats before = logits_of(model);
    attach(*model, {.rank = 3, .targets = kAll});
    EXPECT_EQ(logits_of(model), before);
    detach(*model);
    EXPECT_EQ(logits_of(model), before);
    EXPECT_EQ(model->lora(), nullptr);
  }
}

TEST(Lora, AIsNormalAndFromTheSeedAlone) {
  const auto model = test::random_model(test::gpt2_config(), DType::f32);
  const LoraOptions options{.rank = 16, .targets = kLoraDown, .seed = 9};
  attach(*model, options);
  const Floats a = parameter(*model, "layers.1.down.lora_a"),
               other = parameter(*model, "layers.2.down.lora_a");
  ASSERT_EQ(a.size(), 16u * 512u);
  double sum = 0, squares = 0;
  for (const float x : a) sum += x, squares += double(x) * x;
  EXPECT_NEAR(sum / double(a.size()), 0, 0.01);
  EXPECT_NEAR(std::sqrt(squares / double(a.size())), 1 / std::sqrt(16.0), 0.005);
  EXPECT_NE(a, other);
  for (const float x : parameter(*model, "layers.1.down.lora_b")) EXPECT_EQ(x, 0);
  detach(*model);
  attach(*model, options);
  EXPECT_EQ(parameter(*model, "layers.1.down.lora_a"), a);
  detach(*model);
  attach(*model, {.rank = 16, .targets = kLoraDown, .seed = 10});
  EXPECT_NE(parameter(*model, "layers.1.down.lora_a"), a);
}

TEST(Lora, ParametersComeBehindTheModelsOwn) {
  const auto model = test::random_model(test::llama_config(), DType::f16);
  const size_t own = model->parameter_count();
  attach(*model, {.rank = 2, .targets = kLoraHead | kLoraK | kLoraGate});
  std::vector<std::string> names;
  for (size_t i = own; i < model->parameter_count(); ++i) names.push_back(model->parameter(i).name);
  ASSERT_EQ(names.size(), 2u * (4 * 2 + 1));
  EXPECT_EQ(std::vector(names.begin(), names.begin() + 4),
            (std::vector<std::string>{"layers.0.k.lora_a", "layers.0.k.lora_b", "layers.0.gate.lora_a",
                                      "layers.0.gate.lora_b"}));
  EXPECT_EQ(names.back(), "head.lora_b");
  const ParameterInfo& a = model->parameter("layers.3.k.lora_a");
  const ParameterInfo& b = model->parameter("layers.3.k.lora_b");
  EXPECT_EQ(std::vector({a.rows, a.columns, b.rows, b.columns}), (std::vector<uint32_t>{2, 128, 64, 2}));
  EXPECT_EQ(a.type, DType::f32);
  expect_failure(failure_of([&] { model->parameter(model->parameter_count()); }), Status::out_of_range,
                 "below");
  expect_failure(failure_of([&] { model->parameter("layers.3.q.lora_a"); }), Status::out_of_range,
                 "q.lora_a");
}

TEST(Lora, OptionsThatDoNotFitAreRefused) {
  const auto model = test::random_model(test::gpt2_config(), DType::f32);
  const uint64_t epoch = model->parameter_epoch();
  const auto refused = [&](const LoraOptions& options, Status status, const char* part) {
    expect_failure(failure_of([&] { attach(*model, options); }), status, part);
  };
  refused({.rank = 0}, Status::invalid_argument, "rank of adapters is 0");
  refused({.rank = 129}, Status::out_of_range, "rank of 129 is more than layers.0.q.weight [128, 128]");
  refused({.targets = 0}, Status::invalid_argument, "no target");
  refused({.targets = 256}, Status::invalid_argument, "0x100");
  refused({.targets = kLoraGate}, Status::invalid_argument, "not gated");
  for (const double alpha : {0.0, -1.0, double(NAN), double(INFINITY), 1e300, 1e-60})
    refused({.alpha = alpha}, Status::invalid_argument, "alpha");
  EXPECT_EQ(model->lora(), nullptr);
  EXPECT_EQ(model->parameter_epoch(), epoch);
  attach(*model, {.rank = 128});
  refused({}, Status::invalid_state, "has adapters already");
  EXPECT_EQ(model->lora()->options().rank, 128u);
}

TEST(Lora, WithoutAdaptersNothingIsDetachedOrMerged) {
  const auto model = test::random_model(test::tiny_config(), DType::f32);
  expect_failure(failure_of([&] { detach(*model); }), Status::invalid_state, "no adapters");
  expect_failure(failure_of([&] { merge(*model); }), Status::invalid_state, "no adapters");
}

TEST(Lora, AttachingIsAllOrNothing) {
  const auto model = test::random_model(test::tiny_config(), DType::f32);
  for (const auto hook : test::kAllocationHooks) {
    const uint64_t epoch = model->parameter_epoch();
    test::fail_every_allocation(
        hook, [&] { attach(*model, {.rank = 2}); },
        [&] {
          EXPECT_EQ(model->lora(), nullptr);
          EXPECT_EQ(model->parameter_epoch(), epoch);
        });
    detach(*model);
  }
}

// --- what they compute

// W + (alpha / rank) B A, in double.
Floats updated(const DecoderOnlyTransformer& model, const std::string& linear) {
  const ParameterInfo& a_info = model.parameter(linear + ".lora_a");
  const Floats a = parameter(model, linear + ".lora_a"), b = parameter(model, linear + ".lora_b");
  Floats w = parameter(model, linear + ".weight");
  const double scale = model.lora()->options().alpha / a_info.rows;
  for (size_t i = 0; i < w.size(); ++i) {
    double sum = 0;
    for (size_t r = 0; r < a_info.rows; ++r)
      sum += double(b[i / a_info.columns * a_info.rows + r]) * a[r * a_info.columns + i % a_info.columns];
    w[i] = float(w[i] + scale * sum);
  }
  return w;
}

TEST(Lora, EachTargetComputesTheUpdatedMatrix) {
  ModelConfig llama = test::llama_config();
  llama.tied_head = false;
  for (const ModelConfig& config : {llama, test::gpt2_config()})
    for (uint32_t target = kLoraQ; target <= kLoraHead; target *= 2) {
      if (target == kLoraGate && config.activation != Activation::silu_gated) continue;
      SCOPED_TRACE(target);
      const auto model = test::random_model(config, DType::f32),
                 changed = test::random_model(config, DType::f32);
      const Floats before = logits_of(model);
      test::attach_random_lora(*model, {.rank = 5, .targets = target, .alpha = 15, .seed = target});
      for (const LinearPlace& place : model->lora()->places())
        write(*changed, place.name + ".weight", updated(*model, place.name));
      const Floats with = logits_of(model);
      EXPECT_LT(largest_difference(with, logits_of(changed)), 2e-4);
      EXPECT_GT(largest_difference(with, before), 0.02) << "this test shows nothing";
    }
}

TEST(Lora, MergingAddsThemElementByElement) {
  ModelConfig config = test::llama_config();
  config.tied_head = false;
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    SCOPED_TRACE(dtype_info(type).name);
    const auto model = test::random_model(config, type);
    test::attach_random_lora(*model, {.rank = 7, .targets = kAll, .alpha = 3, .seed = 2});
    std::map<std::string, Floats> expected;
    for (size_t i = 0; i < model->weights().parameters().size(); ++i)
      expected[model->parameter(i).name] = parameter(*model, model->parameter(i).name);
    for (const LinearPlace& place : model->lora()->places()) {
      const Floats a = parameter(*model, place.name + ".lora_a"),
                   b = parameter(*model, place.name + ".lora_b");
      Floats& w = expected[place.name + ".weight"];
      const size_t inputs = a.size() / 7;
      for (size_t i = 0; i < w.size(); ++i) {
        float sum = 0;
        for (size_t r = 0; r < 7; ++r)
          sum = std::fma(b[i / inputs * 7 + r] * float(3.0 / 7), a[r * inputs + i % inputs], sum);
        w[i] = w[i] + sum;
      }
    }
    const Floats before = logits_of(model);
    const uint64_t epoch = model->parameter_epoch();
    merge(*model);
    EXPECT_EQ(model->lora(), nullptr);
    EXPECT_GT(model->parameter_epoch(), epoch);
    for (const auto& [name, values] : expected) {
      EXPECT_EQ(parameter(*model, name), values) << name;
      EXPECT_EQ(model->parameter(name).type, DType::f32) << name;
    }
    EXPECT_LT(largest_difference(logits_of(model), before), 2e-4);
  }
}

TEST(Lora, MergingGivesTheSameBitsOnEveryInstructionSet) {
  Floats first;
  for (const CpuIsa isa : test::available_isas()) {
    const auto model = test::random_model(test::gpt2_config(), DType::f32, {.device = test::device_of(isa)});
    test::attach_random_lora(*model, {.rank = 9, .targets = kLoraUp});
    merge(*model);
    const Floats merged = parameter(*model, "layers.2.up.weight");
    if (first.empty()) first = merged;
    EXPECT_EQ(merged, first) << model->device().kernels->name;
  }
}

TEST(Lora, WhatCannotBeMergedIsRefusedByName) {
  const auto quantised = test::random_model(test::llama_config(), DType::q8_0);
  test::attach_random_lora(*quantised, {.targets = kLoraV});
  const Floats before = logits_of(quantised);
  const auto refusal = failure_of([&] { merge(*quantised); });
  expect_failure(refusal, Status::unsupported, "layers.0.v.weight is q8_0");
  expect_failure(refusal, Status::unsupported, "convert the model");
  EXPECT_EQ(logits_of(quantised), before);

  const auto tied = test::random_model(test::llama_config(), DType::f32);
  test::attach_random_lora(*tied, {.targets = kLoraHead});
  expect_failure(failure_of([&] { merge(*tied); }), Status::unsupported, "head is the token embedding");

  const auto huge = test::random_model(test::tiny_config(), DType::bf16);
  test::attach_random_lora(*huge, {.rank = 1, .targets = kLoraQ | kLoraDown});
  Floats b = parameter(*huge, "layers.0.down.lora_b");
  b[5] = 3e38f;
  write(*huge, "layers.0.down.lora_b", b);
  const Floats a(64, 3.0f);
  write(*huge, "layers.0.down.lora_a", a);
  const Floats q = parameter(*huge, "layers.0.q.weight");
  expect_failure(failure_of([&] { merge(*huge); }), Status::non_finite, "row 5 of layers.0.down.weight");
  EXPECT_EQ(parameter(*huge, "layers.0.q.weight"), q);
  EXPECT_EQ(huge->parameter("layers.0.q.weight").type, DType::bf16);
  EXPECT_NE(huge->lora(), nullptr);
}

TEST(Lora, MergingIsAllOrNothing) {
  for (const auto hook : test::kAllocationHooks) {
    const auto model = test::random_model(test::tiny_config(), DType::f16);
    test::attach_random_lora(*model, {.rank = 2, .targets = kLoraO});
    const Floats before = parameter(*model, "layers.0.o.weight");
    const uint64_t epoch = model->parameter_epoch();
    test::fail_every_allocation(
        hook, [&] { merge(*model); },
        [&] {
          EXPECT_EQ(parameter(*model, "layers.0.o.weight"), before);
          EXPECT_EQ(model->parameter("layers.0.o.weight").type, DType::f16);
          EXPECT_EQ(model->parameter_epoch(), epoch);
          EXPECT_NE(model->lora(), nullptr);
        });
    EXPECT_NE(parameter(*model, "layers.0.o.weight"), before);
  }
}

// --- changing parameters

TEST(ModelChange, WideningChangesNoBitOfTheOutputs) {
  for (const ModelConfig& config : {test::llama_config(), test::window_config()}) {
    const auto model = test::random_model(config, DType::f16);
    const char* const name = model->parameter("layers.1.q.weight").name.c_str();
    const ModelConfig* const place = &model->config();
    const Floats before = logits_of(model);
    {
      ModelChange change(*model, "test");
      change.widen();
      EXPECT_EQ(model->parameter_epoch(), 1u);
      change.widen();
      EXPECT_EQ(model->parameter_epoch(), 1u) << "there was nothing to widen";
    }
    EXPECT_EQ(model->parameter("layers.1.q.weight").type, DType::f32);
    EXPECT_EQ(model->parameter("layers.1.q.weight").name.c_str(), name);
    EXPECT_EQ(&model->config(), place);
    EXPECT_EQ(logits_of(model), before);
  }
}

TEST(ModelChange, WrittenParametersAreWhatIsComputed) {
  const auto model = test::random_model(test::llama_config(), DType::bf16),
             other = test::random_model(test::llama_config(), DType::bf16, {.seed = 2});
  EXPECT_NE(logits_of(model), logits_of(other));
  for (const ParameterInfo& p : model->weights().parameters())
    write(*model, p.name, parameter(*other, p.name));
  EXPECT_EQ(logits_of(model), logits_of(other));
  EXPECT_EQ(model->fingerprint(), other->fingerprint());
}

TEST(ModelChange, ValuesRoundToTheElementType) {
  ModelConfig config = test::tiny_config();
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    const auto model = test::random_model(config, type);
    Floats values(size_t(config.width) * config.width);
    for (size_t i = 0; i < values.size(); ++i) values[i] = 1 + float(i) * 0x1p-13f;
    write(*model, "layers.0.q.weight", values);
    const Floats back = parameter(*model, "layers.0.q.weight");
    for (size_t i = 0; i < values.size(); ++i) {
      const float expected = type == DType::f32   ? values[i]
                             : type == DType::f16 ? half_to_float(float_to_half(values[i]))
                                                  : bf16_to_float(float_to_bf16(values[i]));
      ASSERT_EQ(back[i], expected) << i;
    }
    Floats bias(config.width, 0.1f);
    write(*model, "layers.0.q.bias", bias);
    EXPECT_EQ(parameter(*model, "layers.0.q.bias"), bias);
  }
}

TEST(ModelChange, WritesThatCannotBeAreRefusedWhole) {
  const auto model = test::random_model(test::tiny_config(), DType::f16);
  const auto refused = [&](const std::string& name, const Floats& values, Status status, const char* part) {
    const Floats before = name == "nothing" ? Floats() : parameter(*model, name);
    const uint64_t epoch = model->parameter_epoch();
    expect_failure(failure_of([&] { write(*model, name, values); }), status, part);
    if (!before.empty()) {
      EXPECT_EQ(parameter(*model, name), before);
    }
    EXPECT_EQ(model->parameter_epoch(), epoch);
  };
  Floats values(32 * 32, 0.5f);
  refused("nothing", values, Status::out_of_range, "nothing");
  values.pop_back();
  refused("layers.0.q.weight", values, Status::invalid_argument, "has 1024 values, 1023 are given");
  for (const float bad : {float(NAN), float(INFINITY), 70000.0f}) {
    Floats last(32 * 32, 0.5f);
    last.back() = bad;
    refused("layers.0.q.weight", last, Status::non_finite, "row 31 of layers.0.q.weight");
  }
  refused("layers.0.q.bias", Floats(32, float(NAN)), Status::non_finite, "row 0 of layers.0.q.bias");
  const auto quantised = test::random_model(test::llama_config(), DType::q4_1);
  expect_failure(failure_of([&] { write(*quantised, "layers.0.q.weight", Floats(128 * 128)); }),
                 Status::unsupported, "layers.0.q.weight is q4_1");
  write(*quantised, "layers.0.mlp_norm.weight", Floats(128, 2.0f));
}

// --- serving and changing

void expect_all_changes_refused(DecoderOnlyTransformer& model, const char* part) {
  const uint64_t epoch = model.parameter_epoch();
  expect_failure(failure_of([&] { attach(model, {}); }), Status::invalid_state, part);
  expect_failure(failure_of([&] { detach(model); }), Status::invalid_state, part);
  expect_failure(failure_of([&] { merge(model); }), Status::invalid_state, part);
  expect_failure(failure_of([&] { write(model, "final_norm.weight", Floats(32)); }), Status::invalid_state,
                 part);
  EXPECT_EQ(model.parameter_epoch(), epoch);
}

TEST(ModelChange, LiveSessionsHoldOffEveryChange) {
  const auto model = test::random_model(test::tiny_config(), DType::f32);
  {
    DecodeSession session(model, {});
    expect_all_changes_refused(*model, ": 1 decode session of the model is alive");
    const auto fork = session.fork();
    expect_all_changes_refused(*model, ": 2 decode sessions of the model are alive");
  }
  Generator generator(model, nullptr, nullptr);
  attach(*model, {.rank = 2});  // it is idle
  generator.start_tokens(std::vector<uint32_t>{1, 2}, {.max_new_tokens = 2});
  expect_all_changes_refused(*model, ": 1 decode session of the model is alive");
  generator.next();
  generator.next();
  detach(*model);
  generator.start_tokens(std::vector<uint32_t>{1, 2}, {});
  generator.drop_running();
  attach(*model, {.rank = 2});
}

TEST(ModelChange, StepsAllocateNothingOnceASessionIsMade) {
  const auto model = test::random_model(test::tiny_config(), DType::f32);
  const std::vector<uint32_t> tokens = {1, 2, 3};
  Floats logits(64);
  DecodeSession(model, {}).prefill(tokens, logits);
  for (const uint32_t rank : {3u, 32u}) {
    attach(*model, {.rank = rank, .targets = kLoraQ | kLoraUp});
    {
      const auto factory = make_kv_cache_factory(*model, {.page_count = 1});
      DecodeSession first(model, {.factory = factory});
      const uint64_t buffers = buffer_allocations();
      first.prefill(tokens, logits);
      EXPECT_EQ(buffer_allocations(), buffers + 1) << "only the page";
    }
    detach(*model);
  }
}

TEST(ModelChange, ThreadsThatServeAndChangeNeverMix) {
  const auto model = test::random_model(test::tiny_config(), DType::f32, {.threads = 2});
  const std::vector<uint32_t> tokens = {1, 2, 3};
  const auto row = [&] {
    Floats logits(64);
    DecodeSession(model, {}).prefill(tokens, logits);
    return logits;
  };
  const LoraOptions options{.rank = 2, .targets = kLoraO | kLoraDown};
  const Floats without = row();
  test::attach_random_lora(*model, options);
  const Floats with = row();
  std::atomic<bool> done{false};
  std::thread changer([&] {  // whenever no session is alive
    for (int changes = 0; changes < 20;) {
      const auto failure = failure_of([&] {
        if (changes % 2 == 0) {
          detach(*model);
        } else {
          test::attach_random_lora(*model, options);
        }
      });
      EXPECT_TRUE(failure.status == Status::ok || failure.status == Status::invalid_state) << failure.message;
      if (failure.status == Status::ok) ++changes;
    }
    done = true;
  });
  while (!done) {
    const Floats now = row();
    EXPECT_TRUE(now == with || now == without);
    std::this_thread::yield();
  }
  changer.join();
  EXPECT_EQ(row(), with);
}

TEST(ModelChange, GeneratorsForgetWhatAnotherEpochComputed) {
  const auto model = test::random_model(test::llama_config(), DType::f32);
  Generator generator(model, nullptr, nullptr);
  const auto prompt = test::random_tokens(30, 301, 8);
  const auto row = [&](Generator& of) {
    of.start_tokens(prompt, {});
    const auto logits = of.logits();
    return Floats(logits.begin(), logits.end());
  };
  const Floats before = row(generator);
  generator.drop_running();
  EXPECT_EQ(row(generator), before);
  EXPECT_EQ(generator.stats().reused_tokens, 29u);
  generator.drop_running();
  test::attach_random_lora(*model, {.targets = kLoraK | kLoraV});
  const Floats after = row(generator);
  EXPECT_EQ(generator.stats().reused_tokens, 0u);
  EXPECT_NE(after, before);
  Generator fresh(model, nullptr, nullptr);
  EXPECT_EQ(row(fresh), after);
}

TEST(ModelChange, SavedSessionsAreOfTheirParameters) {
  const auto model = test::random_model(test::tiny_config(), DType::f32);
  const std::string path =
      (std::filesystem::temp_directory_path() / ("riftco_lora_" + std::to_string(getpid()))).string();
  {
    DecodeSession session(model, {});
    Floats logits(64);
    session.step(3, logits);
    save_session(session, 1, path);
  }
  std::set<std::string> fingerprints{model->fingerprint()};
  attach(*model, {.rank = 2});
  expect_failure(failure_of([&] { load_session(model, {}, 1, path); }), Status::invalid_argument,
                 "another model");
  fingerprints.insert(model->fingerprint());
  write(*model, "layers.0.q.lora_b", Floats(64, 0.5f));
  fingerprints.insert(model->fingerprint());
  merge(*model);
  fingerprints.insert(model->fingerprint());
  EXPECT_EQ(fingerprints.size(), 4u);
  EXPECT_EQ(model->session_count(), 0u) << "a refused file leaves no session";

  const auto again = test::random_model(test::tiny_config(), DType::f32);
  attach(*again, {.rank = 2});
  detach(*again);
  load_session(again, {}, 1, path);  // the same parameters
  std::filesystem::remove(path);
}

TEST(ModelChange, ASessionKeepsItsModelAlive) {
  auto model = test::random_model(test::tiny_config(), DType::f32);
  test::attach_random_lora(*model, {.rank = 2});
  Floats expected(64), logits(64);
  DecodeSession(model, {}).step(7, expected);
  DecodeSession session(model, {});
  model.reset();
  session.step(7, logits);
  EXPECT_EQ(logits, expected);
}

TEST(ModelChange, ModelsWithAdaptersAreNotSavedWhole) {
  const auto model = test::random_model(test::tiny_config(), DType::f32);
  attach(*model, {.rank = 2});
  expect_failure(failure_of([&] { save_model(*model, "/nowhere/model.rift", {}); }), Status::invalid_state,
                 "merge or detach");
}

}  // namespace
}  // namespace riftco
