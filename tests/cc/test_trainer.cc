// Trainers: gradients that are those of the loss, the same bits however a step is computed, exact resume, and calls that are
// refused and change nothing.
#include <cmath>
#include <cstring>
#include <numeric>

#include "file_support.h"
#include "serve/decode_session.h"
#include "serve_support.h"
#include "train/trainer.h"

namespace riftco {
namespace {

using test::failure_of;
using Model = std::shared_ptr<DecoderOnlyTransformer>;
using Values = std::vector<float>;

ModelConfig gpt2() {
  ModelConfig c = test::tiny_config(40);
  c.layer_count = 2;
  return c;
}

ModelConfig llama() {
  ModelConfig c = gpt2();
  c.position = PositionKind::rotary, c.norm = NormKind::rms, c.activation = Activation::silu_gated;
  c.kv_head_count = 1, c.rotary_width = 16, c.biases = 0, c.tied_head = true;
  return c;
}

constexpr uint32_t kSequences = 3, kLength = 34, kVocabulary = 64;

struct Data {
  explicit Data(uint64_t seed = 1)
      : tokens(test::random_tokens(kSequences * kLength, kVocabulary, seed)),
        targets(test::random_tokens(kSequences * kLength, kVocabulary, seed + 100)) {
    for (uint32_t i = 0; i < 20; i++) targets[i] = kNoTarget;
  }
  TrainingBatch batch(const CancelFlag* cancel = nullptr) const {
    return {tokens, targets, kSequences, kLength, cancel};
  }
  std::vector<uint32_t> tokens, targets;
};

struct Kind {
  const char* name;
  ModelConfig config;
  uint32_t lora_targets = 0;  // 0: all parameters are trained
  DType type = DType::f32;
};
const Kind kKinds[] = {{"gpt2", gpt2()},
                       {"llama", llama()},
                       {"lora", llama(), 127, DType::q8_0},
                       {"lora16", gpt2(), 255 - kLoraGate, DType::bf16}};

Model make(const Kind& kind, const test::ModelOptions& options = {}) {
  Model model = test::random_model(kind.config, kind.type, options);
  if (kind.lora_targets)
    test::attach_random_lora(*model,
                             {.rank = 3, .targets = kind.lora_targets, .alpha = 6, .seed = options.seed});
  return model;
}

Values values_of(const DecoderOnlyTransformer& model) {
  Values all;
  for (size_t i = 0; i < model.parameter_count(); i++) {
    const ParameterInfo& p = model.parameter(i);
    Values values(size_t(p.rows) * p.columns);
    model.read_parameter(p.name, values.data());
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

void add(DecoderOnlyTransformer& model, const std::string& name, const Values& direction, float scale) {
  Values values(direction.size());
  model.read_parameter(name, values.data());
  for (size_t i = 0; i < values.size(); i++) values[i] += scale * direction[i];
  ModelChange(model, "a test").write_parameter(name, values);
}

Values gradient(const Trainer& trainer, const std::string& name) {
  const ParameterInfo& p = trainer.gradient_info(name);
  Values values(size_t(p.rows) * p.columns);
  trainer.read_gradient(name, values.data());
  return values;
}

// Three steps, and what the model is then.
Values train(const Kind& kind, const TrainerOptions& options, const test::ModelOptions& model_options = {}) {
  const Model model = make(kind, model_options);
  Trainer trainer(model, options);
  for (uint64_t step = 0; step < 3; step++) trainer.step(Data(step).batch());
  return values_of(*model);
}

double largest_difference(const Values& a, const Values& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); i++) most = std::max(most, std::abs(double(a[i]) - double(b[i])));
  return most;
}

class TrainerTest : public testing::TestWithParam<size_t> {
 protected:
  const Kind& kind() const { return kKinds[GetParam()]; }
};
INSTANTIATE_TEST_SUITE_P(, TrainerTest, testing::Range<size_t>(0, std::size(kKinds)),
                         [](const auto& kind) { return std::string(kKinds[kind.param].name); });

// A step along a parameter's gradient changes the loss by the length of the step times the gradient's norm.
TEST_P(TrainerTest, GradientsAreTheSlopesOfTheLoss) {
  const Data data;
  for (const auto attention : {TrainingAttention::flash, TrainingAttention::materialized}) {
    const Model model = make(kind());
    Trainer trainer(model,
                    {.optimizer = {}, .schedule = {.learning_rate = 0}, .network = {.attention = attention}});
    const Values before = values_of(*model);
    trainer.step(data.batch());
    EXPECT_EQ(values_of(*model), before) << "a rate of 0 changes nothing";
    const ParameterStore& trained = kind().lora_targets
                                        ? model->lora()->parameters()
                                        : static_cast<const ParameterStore&>(model->weights());
    std::vector<Values> gradients;
    for (const ParameterInfo& p : trained.parameters()) gradients.push_back(gradient(trainer, p.name));
    for (size_t i = 0; i < gradients.size(); i++) {
      const std::string& name = trained.parameters()[i].name;
      const Values& g = gradients[i];
      const double norm = std::sqrt(std::inner_product(g.begin(), g.end(), g.begin(), 0.0));
      if (name.ends_with("k.bias")) continue;  // the same for all keys of a query: no slope
      ASSERT_GT(norm, 1e-4) << name;
      const double size = 0.02;
      Values direction = g;
      for (float& x : direction) x = float(double(x) / norm);
      add(*model, name, direction, float(size));
      const double up = trainer.step(data.batch()).loss;
      add(*model, name, direction, float(-2 * size));
      const double down = trainer.step(data.batch()).loss;
      add(*model, name, direction, float(size));
      EXPECT_NEAR((up - down) / (2 * size), norm, 0.01 * norm + 2e-5) << name;
    }
  }
}

TEST_P(TrainerTest, AStepIsTheSameHoweverItIsComputed) {
  const Values expected = train(kind(), {});
  TrainerOptions recompute, pieces, materialized;
  recompute.network.recompute = true;
  pieces.network.micro_batch = 2;
  materialized.network.attention = TrainingAttention::materialized;
  EXPECT_EQ(train(kind(), recompute), expected);
  EXPECT_LT(largest_difference(train(kind(), pieces), expected), 2e-5);
  EXPECT_LT(largest_difference(train(kind(), materialized), expected), 2e-5);
  EXPECT_GT(largest_difference(values_of(*make(kind())), expected), 5e-4) << "something was learnt";
}

using TrainerThreads = TrainerTest;
INSTANTIATE_TEST_SUITE_P(, TrainerThreads, testing::Range<size_t>(0, std::size(kKinds)),
                         [](const auto& kind) { return std::string(kKinds[kind.param].name); });

TEST_P(TrainerThreads, AndInstructionSetsGiveTheSameBits) {
  const Values expected = train(kind(), {});
  for (const uint32_t threads : {2u, 3u}) EXPECT_EQ(train(kind(), {}, {.threads = threads}), expected);
  for (const CpuIsa isa : test::available_isas())
    EXPECT_EQ(train(kind(), {}, {.device = test::device_of(isa)}), expected) << int(isa);
}

TEST_P(TrainerTest, AModelLearnsABatchByHeart) {
  const Model model = make(kind());
  Trainer trainer(model, {.optimizer = {}, .schedule = {.learning_rate = 1e-2}, .network = {}});
  const Data data;
  const double first = trainer.step(data.batch()).loss;
  double last = first;
  for (int i = 0; i < 25; i++) last = trainer.step(data.batch()).loss;
  EXPECT_LT(last, first - 1) << first;
}

class TrainerFile : public test::FileTest {
 protected:
  std::string path() const { return path_.string(); }
};

TEST_F(TrainerFile, AResumedRunHasTheBitsOfOneThatWasNotStopped) {
  const TrainerOptions options{
      .optimizer = {}, .schedule = {ScheduleKind::cosine, 1e-3, 2, 8, 0.1}, .network = {}};
  for (const Kind& kind : kKinds)
    for (const CpuIsa isa : test::available_isas()) {
      const Model model = make(kind);
      Trainer trainer(model, options);
      for (uint64_t step = 0; step < 3; step++) trainer.step(Data(step).batch());
      trainer.save(path(), "at 3", nullptr);
      const Model other = make(kind, {.threads = 2, .device = test::device_of(isa)});
      Trainer resumed(other, options);
      resumed.step(Data(77).batch());  // elsewhere before it goes on from the file
      const uint64_t epoch = other->parameter_epoch();
      resumed.load(path(), nullptr);
      EXPECT_EQ(other->parameter_epoch(), epoch + 1);
      EXPECT_EQ(resumed.steps(), 3u);
      EXPECT_EQ(values_of(*other), values_of(*model));
      for (uint64_t step = 3; step < 6; step++) {
        const TrainingMetrics a = trainer.step(Data(step).batch()), b = resumed.step(Data(step).batch());
        EXPECT_EQ(a.loss, b.loss);
        EXPECT_EQ(a.gradient_norm, b.gradient_norm);
        EXPECT_EQ(a.learning_rate, b.learning_rate);
        EXPECT_EQ(a.step, b.step);
      }
      EXPECT_EQ(values_of(*other), values_of(*model)) << kind.name << " " << int(isa);
      EXPECT_EQ(checkpoint_state(path()), "at 3");
    }
}

TEST_F(TrainerFile, ALoadThatFailsChangesNothing) {
  const Model model = make(kKinds[0]);
  Trainer trainer(model, {});
  trainer.step(Data(1).batch());
  trainer.save(path(), "", nullptr);
  trainer.step(Data(2).batch());
  DecodeSession(model, {});  // the first one reserves memory
  const Values before = values_of(*model);
  const uint64_t epoch = model->parameter_epoch(), bytes = model->memory_bytes();
  const std::string whole = contents();
  const auto unchanged = [&] {
    return values_of(*model) == before && trainer.steps() == 2 && model->parameter_epoch() == epoch &&
           model->memory_bytes() == bytes;
  };
  for (const size_t at : {whole.size() / 3, whole.size() / 2, whole.size() - 1}) {
    std::string changed = whole;
    changed[at] = char(changed[at] ^ 1);
    replace(changed);
    EXPECT_EQ(failure_of([&] { trainer.load(path(), nullptr); }).status, Status::corrupt_data);
    EXPECT_TRUE(unchanged());
    EXPECT_EQ(failure_of([&] { trainer.check_gradients(); }).status, Status::invalid_state);
  }
  replace(whole);
  CancelFlag cancel;
  cancel.set();
  EXPECT_EQ(failure_of([&] { trainer.load(path(), &cancel); }).status, Status::cancelled);
  EXPECT_TRUE(unchanged());
  {
    const DecodeSession session(model, {});
    EXPECT_EQ(failure_of([&] { trainer.load(path(), nullptr); }).message,
              "loading a checkpoint: 1 decode session of the model is alive");
    trainer.save(path(), "a save changes nothing", nullptr);
  }
  EXPECT_TRUE(unchanged());
  const int failures = test::fail_every_allocation(
      fail_buffer_after, [&] { trainer.load(path(), nullptr); }, [&] { EXPECT_TRUE(unchanged()); });
  EXPECT_EQ(failures, 2) << "two moments";
  EXPECT_EQ(values_of(*model), before) << "it was saved there";
}

TEST_F(TrainerFile, AdaptersGoOnOnlyOnTheirOwnBase) {
  const Model model = make(kKinds[2]);
  Trainer trainer(model, {});
  trainer.step(Data(1).batch());
  trainer.save(path(), "", nullptr);
  const Model other = test::random_model(llama(), DType::q8_0, {.seed = 2});
  test::attach_random_lora(*other, {.rank = 3, .targets = 127, .alpha = 6, .seed = 1});
  const auto failure = failure_of([&] { Trainer(other, {}).load(path(), nullptr); });
  EXPECT_EQ(failure.status, Status::invalid_argument);
  EXPECT_NE(failure.message.find("of adapters of other weights"), std::string::npos) << failure.message;
}

TEST(Trainer, OnlyAdaptersAreTrainedWhereThereAreSome) {
  const Model model = make(kKinds[2]);
  const std::string base = model->weights_fingerprint();
  const Values before = values_of(*model);
  Trainer trainer(model, {});
  trainer.step(Data().batch());
  EXPECT_EQ(model->weights_fingerprint(), base);
  EXPECT_NE(values_of(*model), before);
  uint64_t count = 0;
  for (const ParameterInfo& p : model->lora()->parameters().parameters())
    count += uint64_t(p.rows) * p.columns;
  EXPECT_EQ(trainer.trained_count(), count);
  EXPECT_EQ(failure_of([&] { trainer.gradient_info("layers.0.q.weight"); }).message,
            "the trainer has no parameter \"layers.0.q.weight\"");
}

TEST(Trainer, SixteenBitsBecomeFloats) {
  for (const DType type : {DType::f16, DType::bf16}) {
    const Model narrow = test::random_model(gpt2(), type);
    const Values before = values_of(*narrow);
    Trainer trainer(narrow, {});
    EXPECT_EQ(values_of(*narrow), before);
    for (const ParameterInfo& p : narrow->weights().parameters()) EXPECT_EQ(p.type, DType::f32);
    trainer.step(Data().batch());
    EXPECT_NE(values_of(*narrow), before);
  }
}

TEST(Trainer, TrainsExactlyWhateverStepsCompute) {
  test::ModelOptions rounding;
  rounding.compute = Compute::bf16;
  const Model model = make(kKinds[3], rounding), exact = make(kKinds[3]);
  Trainer trainer(model, {}), other(exact, {});
  for (int i = 0; i < 3; i++) EXPECT_EQ(trainer.step(Data().batch()).loss, other.step(Data().batch()).loss);
  EXPECT_EQ(values_of(*model), values_of(*exact));
  EXPECT_EQ(model->weights().step_model().compute, Compute::bf16);

  const Model narrow = test::random_model(gpt2(), DType::bf16, rounding);
  Trainer(narrow, {}).step(Data().batch());
  const Model same = test::random_model(gpt2(), DType::bf16);
  Trainer(same, {}).step(Data().batch());
  EXPECT_EQ(narrow->weights().step_model().compute, Compute::exact);
  EXPECT_EQ(narrow->fingerprint(), same->fingerprint());
}

TEST(Trainer, QuantisedWeightsAreRefusedWithTheWayOut) {
  const auto failure = failure_of([&] { Trainer(test::random_model(llama(), DType::q8_0), {}); });
  EXPECT_EQ(failure.status, Status::unsupported);
  EXPECT_EQ(failure.message,
            "embedding.token is q8_0: quantised weights cannot be trained; attach adapters, or convert the "
            "model to a "
            "float type");
}

TEST(Trainer, StepsAreRefusedWhileSessionsAreAlive) {
  const Model model = make(kKinds[0]);
  Trainer trainer(model, {});
  const Values before = values_of(*model);
  {
    const DecodeSession one(model, {});
    EXPECT_EQ(failure_of([&] { trainer.step(Data().batch()); }).message,
              "a training step: 1 decode session of the model is alive");
    const auto two = one.fork();
    const auto failure = failure_of([&] { trainer.step(Data().batch()); });
    EXPECT_EQ(failure.status, Status::invalid_state);
    EXPECT_EQ(failure.message, "a training step: 2 decode sessions of the model are alive");
    EXPECT_EQ(failure_of([&] { Trainer(test::random_model(gpt2(), DType::f32), {}); }).status, Status::ok);
  }
  EXPECT_EQ(values_of(*model), before);
  EXPECT_EQ(trainer.step(Data().batch()).step, 1u);
}

TEST(Trainer, WideningIsRefusedWhileSessionsAreAlive) {
  const Model model = test::random_model(gpt2(), DType::f16);
  const DecodeSession session(model, {});
  const uint64_t bytes = model->memory_bytes();
  EXPECT_EQ(failure_of([&] { Trainer(model, {}); }).status, Status::invalid_state);
  EXPECT_EQ(model->memory_bytes(), bytes);
}

TEST(Trainer, SamplingBetweenStepsSeesWhatWasLearnt) {
  const Model model = make(kKinds[1]);
  Trainer trainer(model, {.optimizer = {}, .schedule = {.learning_rate = 1e-2}, .network = {}});
  Values logits(kVocabulary), last;
  for (uint64_t step = 0; step < 3; step++) {
    trainer.step(Data(step).batch());
    EXPECT_EQ(model->parameter_epoch(), step + 1) << "what was computed before is stale";
    DecodeSession(model, {}).step(5, logits);
    EXPECT_NE(logits, last);
    last = logits;
  }
}

TEST(Trainer, AdaptersThatComeOrGoEndIt) {
  const Model model = make(kKinds[0]);
  Trainer trainer(model, {});
  trainer.step(Data().batch());
  {
    ModelChange change(*model, "a test");
    attach_lora(change, {});
  }
  const char* message = "adapters were attached, detached or merged since the trainer was made";
  EXPECT_EQ(failure_of([&] { trainer.step(Data().batch()); }).message, message);
  EXPECT_EQ(failure_of([&] { trainer.save("x", "", nullptr); }).message, message);
  EXPECT_EQ(failure_of([&] { trainer.load("x", nullptr); }).message, message);
  Trainer adapters(model, {});
  {
    ModelChange change(*model, "a test");
    detach_lora(change);
  }
  EXPECT_EQ(failure_of([&] { adapters.step(Data().batch()); }).message, message);
  EXPECT_EQ(trainer.step(Data().batch()).step, 2u) << "the adapters are gone again";
  {
    ModelChange change(*model, "a test");
    attach_lora(change, {});
    merge_lora(change);
  }
  EXPECT_EQ(failure_of([&] { trainer.step(Data().batch()); }).message, message);
}

TEST(Trainer, WhatIsNotFiniteChangesNothing) {
  const Model model = make(kKinds[0]);
  Trainer trainer(model, {});
  trainer.step(Data(1).batch());
  Values values(size_t(32) * 64, 3e38f);
  ModelChange(*model, "a test").write_parameter("layers.1.down.weight", values);
  const Values before = values_of(*model);
  const uint64_t epoch = model->parameter_epoch();
  const auto failure = failure_of([&] { trainer.step(Data(2).batch()); });
  EXPECT_EQ(failure.status, Status::non_finite) << failure.message;
  EXPECT_EQ(values_of(*model), before);
  EXPECT_EQ(model->parameter_epoch(), epoch);
  EXPECT_EQ(trainer.steps(), 1u);
}

TEST(Trainer, ACancelledStepChangesNothing) {
  const Model model = make(kKinds[0]);
  Trainer trainer(model, {});
  const Values before = values_of(*model);
  CancelFlag cancel;
  cancel.set();
  EXPECT_EQ(failure_of([&] { trainer.step(Data().batch(&cancel)); }).status, Status::cancelled);
  EXPECT_EQ(values_of(*model), before);
  EXPECT_EQ(trainer.steps(), 0u);
  EXPECT_EQ(failure_of([&] { trainer.check_gradients(); }).status, Status::invalid_state);
  cancel.reset();
  EXPECT_EQ(trainer.step(Data().batch(&cancel)).step, 1u);
}

TEST(Trainer, WithoutMemoryNothingChanges) {
  const Model model = test::random_model(gpt2(), DType::f16);
  const Values before = values_of(*model);
  const uint64_t bytes = model->memory_bytes();
  std::unique_ptr<Trainer> trainer;
  int failures = test::fail_every_allocation(
      fail_buffer_after, [&] { trainer = std::make_unique<Trainer>(model, TrainerOptions{}); },
      [&] {
        EXPECT_EQ(model->memory_bytes(), bytes);
        EXPECT_EQ(model->weights().parameters()[0].type, DType::f16);
      });
  EXPECT_GE(failures, 4) << "gradients, moments, sums, wide weights";
  failures = test::fail_every_allocation(
      fail_buffer_after, [&] { trainer->step(Data().batch()); },
      [&] {
        EXPECT_EQ(values_of(*model), before);
        EXPECT_EQ(trainer->steps(), 0u);
      });
  EXPECT_GE(failures, 1);
  EXPECT_EQ(trainer->steps(), 1u);
}

TEST(Trainer, MetricsAndInfo) {
  const Model model = make(kKinds[0]);
  TrainerOptions options{
      .optimizer = {}, .schedule = {.learning_rate = 0.5, .warmup_steps = 10}, .network = {}};
  Trainer trainer(model, options);
  EXPECT_EQ(trainer.activation_bytes(), 0u);
  const TrainingMetrics metrics = trainer.step(Data().batch());
  EXPECT_EQ(metrics.target_count, kSequences * kLength - 20);
  EXPECT_EQ(metrics.step, 1u);
  EXPECT_EQ(metrics.learning_rate, 0.05);
  EXPECT_NEAR(metrics.loss, std::log(64), 3);
  EXPECT_GT(trainer.activation_bytes(), 10000u);
  EXPECT_EQ(trainer.trained_count(), parameter_count(gpt2()));
  EXPECT_GE(trainer.optimizer_bytes(), 12 * trainer.trained_count());
}

TEST(Trainer, OptionsAreChecked) {
  const Model model = make(kKinds[0]);
  EXPECT_EQ(
      failure_of([&] { Trainer(model, {.optimizer = {.beta1 = 1}, .schedule = {}, .network = {}}); }).message,
      "beta1 is 1, not between 0 and 0.999999");
  EXPECT_EQ(failure_of([&] {
              Trainer(model, {.optimizer = {}, .schedule = {.kind = ScheduleKind::linear}, .network = {}});
            }).message,
            "total_steps is 0: this schedule needs its end");
}

}  // namespace
}  // namespace riftco
