// The training forward and backward against the inference forward, finite differences and each other.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "serve/decode_session.h"
#include "serve_support.h"
#include "train/network.h"

namespace riftco::test {
namespace {

// Odd sizes: heads that are no whole vectors, sequences of more than a tile of keys.
constexpr uint32_t kLength = 90, kSequences = 3;

ModelConfig gpt2_like() {
  ModelConfig c;
  c.vocabulary_size = 67, c.maximum_context = 100, c.layer_count = 2, c.width = 40;
  c.head_count = c.kv_head_count = 2, c.head_width = 20, c.mlp_width = 52;
  c.activation = Activation::gelu_tanh;
  return c;
}

ModelConfig native_like() {
  ModelConfig c = gpt2_like();
  c.activation = Activation::gelu_erf;
  c.tied_head = true;
  return c;
}

ModelConfig llama_like() {
  ModelConfig c = gpt2_like();
  c.position = PositionKind::rotary, c.norm = NormKind::rms, c.activation = Activation::silu_gated;
  c.biases = kBiasQ | kBiasK | kBiasV;
  c.head_count = 4, c.head_width = 12, c.rotary_width = 8;
  return c;
}

ModelConfig windowed_like() {
  ModelConfig c = llama_like();
  c.kv_head_count = 1, c.qk_norm = true, c.biases = 0, c.sliding_window = 17, c.first_window_layer = 1;
  c.rotary_width = 12;
  return c;
}

ModelConfig (*const kConfigs[])() = {gpt2_like, native_like, llama_like, windowed_like};

struct Data {
  std::vector<uint32_t> tokens = random_tokens(kSequences * kLength, 67, 3);
  std::vector<uint32_t> targets = random_tokens(kSequences * kLength, 67, 4);
  Data() {
    for (uint32_t i = 0; i < 40; i++) targets[i] = kNoTarget;
  }
  TrainingBatch batch() const { return {tokens, targets, kSequences, kLength}; }
};

ParameterStore like(const DecoderOnlyTransformer& model) {
  return {model.device(), model.weights().parameters(), model.account(), "gradients"};
}

struct Result {
  double loss;
  std::vector<std::vector<float>> gradients;  // in logical order
  bool operator==(const Result&) const = default;
};

Result run(const std::shared_ptr<const DecoderOnlyTransformer>& model, const NetworkOptions& options = {}) {
  const Data data;
  ParameterStore gradients = like(*model);
  Result result{TrainingNetwork(model, options).loss_and_gradients(data.batch(), gradients), {}};
  for (size_t i = 0; i < gradients.parameters().size(); i++) {
    const ParameterInfo& p = gradients.parameters()[i];
    result.gradients.emplace_back(size_t(p.rows) * p.columns);
    gradients.read_floats(i, result.gradients.back().data());
  }
  return result;
}

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += double(v) * double(v);
  return std::sqrt(sum);
}

void expect_close(const Result& a, const Result& b, double tolerance) {
  EXPECT_NEAR(a.loss, b.loss, tolerance);
  for (size_t i = 0; i < a.gradients.size(); i++) {
    std::vector<float> difference = a.gradients[i];
    for (size_t j = 0; j < difference.size(); j++) difference[j] -= b.gradients[i][j];
    EXPECT_LE(norm_of(difference), tolerance * (norm_of(a.gradients[i]) + 1e-3)) << i;
  }
}

class Network : public testing::TestWithParam<size_t> {
 protected:
  ModelConfig config() const { return kConfigs[GetParam()](); }
  std::shared_ptr<DecoderOnlyTransformer> model(const ModelOptions& options = {}) const {
    return random_model(config(), DType::f32, options);
  }
};
INSTANTIATE_TEST_SUITE_P(, Network, testing::Range<size_t>(0, std::size(kConfigs)));

// The loss that the inference kernels' logits have.
TEST_P(Network, LossIsThatOfInference) {
  const auto m = model();
  const Data data;
  double total = 0;
  std::vector<float> logits(kLength * 67);
  for (uint32_t s = 0; s < kSequences; s++) {
    sequence_logits(m, {data.tokens.data() + s * kLength, kLength}, nullptr, logits);
    for (uint32_t t = 0; t < kLength; t++) {
      const uint32_t target = data.targets[s * kLength + t];
      if (target == kNoTarget) continue;
      double sum = 0;
      for (uint32_t v = 0; v < 67; v++) sum += std::exp(double(logits[t * 67 + v]));
      total += std::log(sum) - double(logits[t * 67 + target]);
    }
  }
  for (const TrainingAttention attention : {TrainingAttention::flash, TrainingAttention::materialized})
    EXPECT_NEAR(TrainingNetwork(m, {.attention = attention}).loss(data.batch()),
                total / (kSequences * kLength - 40), 2e-6);
}

// Along each parameter's gradient the loss changes as the gradient says.
TEST_P(Network, GradientsAreThoseOfTheLoss) {
  const auto m = model();
  const Data data;
  const Result result = run(m);
  TrainingNetwork network(m, {});
  const ParameterStore& weights = m->weights();
  ParameterStore direction = like(*m);
  TrainingNetwork(m, {}).loss_and_gradients(data.batch(), direction);
  for (size_t i = 0; i < weights.parameters().size(); i++) {
    const ParameterInfo& p = weights.parameters()[i];
    const double norm = norm_of(result.gradients[i]);
    if (m->config().position == PositionKind::learned && p.name.ends_with("k.bias")) {
      EXPECT_LT(norm, 1e-6);  // a shift of all scores of a row changes nothing
      continue;
    }
    ASSERT_GT(norm, 1e-6) << p.name;
    const double step = std::min(2e-3 / norm, 0.2);
    const size_t count = weights.packed_bytes(i) / sizeof(float);
    float* values = reinterpret_cast<float*>(weights.data(i));
    const float* along = reinterpret_cast<const float*>(direction.data(i));
    const std::vector<float> before(values, values + count);
    const auto loss_at = [&](double distance) {
      for (size_t j = 0; j < count; j++)
        values[j] = float(double(before[j]) + distance * double(along[j]) / norm);
      return network.loss(data.batch());
    };
    const double slope = (loss_at(step) - loss_at(-step)) / (2 * step);
    std::memcpy(values, before.data(), count * sizeof(float));
    EXPECT_NEAR(slope, norm, 0.02 * norm + 1e-5) << p.name;
  }
}

TEST_P(Network, BothAttentionsAgree) {
  const auto m = model();
  expect_close(run(m), run(m, {.attention = TrainingAttention::materialized}), 1e-5);
}

TEST_P(Network, RecomputingChangesNoBit) {
  const auto m = model();
  EXPECT_TRUE(run(m) == run(m, {.recompute = true}));
}

TEST_P(Network, MicroBatchesAddUp) {
  const auto m = model();
  expect_close(run(m), run(m, {.micro_batch = 1}), 1e-5);
  expect_close(run(m), run(m, {.micro_batch = 2}), 1e-5);
}

TEST_P(Network, ThreadsChangeNoBit) {
  const Result one = run(model());
  for (const uint32_t threads : {2u, 3u}) {
    EXPECT_TRUE(one == run(model({.threads = threads})));
    EXPECT_TRUE(one == run(model({.threads = threads}), {.recompute = true}));
  }
}

TEST_P(Network, InstructionSetsGiveTheSameBits) {
  const Result scalar = run(model({.device = device_of(CpuIsa::scalar)}));
  for (const CpuIsa isa : available_isas())
    EXPECT_TRUE(scalar == run(model({.device = device_of(isa)}))) << int(isa);
}

TEST(NetworkBatch, IsChecked) {
  const ModelConfig config = gpt2_like();
  Data data;
  const auto failure = [&](TrainingBatch batch) { return failure_of([&] { check_batch(config, batch); }); };
  EXPECT_EQ(failure(data.batch()).status, Status::ok);
  EXPECT_EQ(failure({data.tokens, data.targets, 0, kLength}).status, Status::invalid_argument);
  EXPECT_EQ(failure({data.tokens, data.targets, 2, kLength}).status, Status::invalid_argument);
  EXPECT_EQ(failure({data.tokens, data.targets, 1, 3 * kLength}).status, Status::context_full);
  data.targets[100] = 67;
  EXPECT_EQ(failure(data.batch()).message,
            "target 67 at sequence 1, position 10 is not below the vocabulary size 67");
  std::fill(data.targets.begin(), data.targets.end(), kNoTarget);
  EXPECT_EQ(failure(data.batch()).message, "no target of the batch counts");
}

TEST(NetworkCancel, IsSeen) {
  const auto m = random_model(gpt2_like(), DType::f32);
  const Data data;
  CancelFlag cancel;
  cancel.set();
  TrainingBatch batch = data.batch();
  batch.cancel = &cancel;
  EXPECT_EQ(failure_of([&] { TrainingNetwork(m, {}).loss(batch); }).status, Status::cancelled);
}

// Long sequences: flash keeps memory in proportion to the length, materialized to its square.
TEST(NetworkMemory, GrowsWithTheLength) {
  ModelConfig config = gpt2_like();
  config.maximum_context = 4096;
  const auto m = random_model(config, DType::f32);
  const auto bytes = [&](uint32_t length, TrainingAttention attention) {
    const std::vector<uint32_t> ids = random_tokens(length, 67, 1);
    ParameterStore gradients = like(*m);
    TrainingNetwork network(m, {.attention = attention});
    network.loss_and_gradients({ids, ids, 1, length}, gradients);
    return double(network.activation_bytes());
  };
  EXPECT_LT(bytes(1024, TrainingAttention::flash), 2.1 * bytes(512, TrainingAttention::flash));
  EXPECT_GT(bytes(1024, TrainingAttention::materialized), 2.5 * bytes(512, TrainingAttention::materialized));
}

}  // namespace
}  // namespace riftco::test
