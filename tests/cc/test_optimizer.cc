// AdamW: the published rule, groups, clipping, and the same bits on any number of threads and instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/random.h"
#include "model/weights.h"
#include "serve_support.h"
#include "train/optimizer.h"

namespace riftco {
namespace {

using test::failure_of;
using Values = std::vector<std::vector<float>>;  // by parameter, in logical order

std::vector<ParameterInfo> list() {
  ModelConfig config = test::tiny_config();
  config.width = 50;  // not a multiple of any panel
  config.mlp_width = 72;
  return parameter_list(config, DType::f32);
}

// Stores on one device, and updates from a generator.
struct Bench {
  explicit Bench(const OptimizerOptions& options = {}, uint32_t threads = 1,
                 const Device& device = test::best_device())
      : account(std::make_shared<MemoryAccount>()),
        parameters(device, list(), account, "p"),
        gradients(device, list(), account, "g"),
        optimizer(device, list(), options, account),
        pool(threads) {
    fill(parameters, 1, 1);
  }

  static void fill(ParameterStore& store, uint64_t seed, float scale) {
    for (size_t i = 0; i < store.parameters().size(); i++) {
      const ParameterInfo& p = store.parameters()[i];
      std::vector<float> row(p.columns);
      for (uint32_t r = 0; r < p.rows; r++) {
        for (uint32_t c = 0; c < p.columns; c++)
          row[c] = scale * (float(philox(seed, uint64_t(r) * p.columns + c, i)[0]) * 0x1p-31f - 1.0f);
        store.set_rows(i, r, 1, std::as_bytes(std::span(row)).data());
      }
    }
  }
  double update(uint64_t seed, double rate = 1e-3, float scale = 0.1f) {
    fill(gradients, seed, scale);
    const double norm = optimizer.gradient_norm(gradients, pool);
    optimizer.update(parameters, gradients, norm, rate, pool);
    return norm;
  }
  // One gradient of one parameter.
  void set_gradient(const char* name, float value) {
    const size_t index = *gradients.find(name);
    std::memcpy(gradients.data(index), &value, 4);
  }

  std::shared_ptr<MemoryAccount> account;
  ParameterStore parameters, gradients;
  Optimizer optimizer;
  ThreadPool pool;
};

Values values_of(const ParameterStore& store) {
  Values all;
  for (size_t i = 0; i < store.parameters().size(); i++) {
    const ParameterInfo& p = store.parameters()[i];
    all.emplace_back(size_t(p.rows) * p.columns);
    store.read_floats(i, all.back().data());
  }
  return all;
}

TEST(Optimizer, FollowsThePublishedRule) {
  const OptimizerOptions options{
      .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1, .maximum_gradient_norm = 1.5};
  Bench bench(options);
  const Values start = values_of(bench.parameters);
  std::vector<std::vector<double>> p, m, v;
  for (const auto& values : start) {
    p.emplace_back(values.begin(), values.end());
    m.emplace_back(values.size()), v.emplace_back(values.size());
  }
  for (int t = 1; t <= 4; t++) {
    const double rate = 0.01 / t;
    const double norm = bench.update(uint64_t(10 + t), rate);
    const Values g = values_of(bench.gradients);
    double squares = 0;
    for (const auto& values : g)
      for (const float x : values) squares += double(x) * double(x);
    EXPECT_NEAR(norm, std::sqrt(squares), 1e-9 * norm);
    EXPECT_GT(norm, 2) << "clipping has something to do";
    for (size_t i = 0; i < p.size(); i++)
      for (size_t k = 0; k < p[i].size(); k++) {
        const double x = double(g[i][k]) * 1.5 / norm;
        m[i][k] = 0.8 * m[i][k] + 0.2 * x;
        v[i][k] = 0.95 * v[i][k] + 0.05 * x * x;
        const double denominator = std::sqrt(v[i][k] / (1 - std::pow(0.95, t))) + 1e-6;
        if (decays(bench.parameters.parameters()[i])) p[i][k] *= 1 - rate * 0.1;
        p[i][k] -= rate * m[i][k] / (1 - std::pow(0.8, t)) / denominator;
      }
  }
  EXPECT_EQ(bench.optimizer.step(), 4u);
  const Values end = values_of(bench.parameters);
  for (size_t i = 0; i < p.size(); i++)
    for (size_t k = 0; k < p[i].size(); k++) {
      ASSERT_NEAR(double(end[i][k]), p[i][k], 1e-6) << bench.parameters.parameters()[i].name << " " << k;
      ASSERT_GT(std::abs(double(end[i][k] - start[i][k])), 1e-5);
    }
}

TEST(Optimizer, OnlyMatricesThatAreNoEmbeddingDecay) {
  std::vector<std::string> decaying;
  for (const ParameterInfo& p : list())
    if (decays(p)) decaying.push_back(p.name);
  EXPECT_EQ(decaying, (std::vector<std::string>{"layers.0.q.weight", "layers.0.k.weight", "layers.0.v.weight",
                                                "layers.0.o.weight", "layers.0.up.weight",
                                                "layers.0.down.weight", "head.weight"}));
  EXPECT_TRUE(decays({"layers.0.q.lora_a", DType::f32, 4, 16, false}));
}

TEST(OptimizerThreads, AndInstructionSetsGiveTheSameBits) {
  Values expected;
  std::vector<double> norms;
  for (const CpuIsa isa : test::available_isas())
    for (const uint32_t threads : {1u, 2u, 3u}) {
      Bench bench({}, threads, test::device_of(isa));
      std::vector<double> seen;
      for (uint64_t t = 0; t < 3; t++) seen.push_back(bench.update(t + 5));
      if (expected.empty()) expected = values_of(bench.parameters), norms = seen;
      EXPECT_EQ(values_of(bench.parameters), expected) << int(isa) << " " << threads;
      EXPECT_EQ(seen, norms) << int(isa) << " " << threads;
    }
}

TEST(Optimizer, ClippingCanBeOff) {
  Bench clipped({.maximum_gradient_norm = 1e-3}), free({.maximum_gradient_norm = 0}),
      below({.maximum_gradient_norm = 1e6});
  EXPECT_EQ(clipped.update(3), free.update(3)) << "the norm is that before clipping";
  below.update(3);
  EXPECT_EQ(values_of(free.optimizer.moment1()), values_of(below.optimizer.moment1()));
  EXPECT_NE(values_of(free.optimizer.moment1()), values_of(clipped.optimizer.moment1()));
}

TEST(Optimizer, GradientsThatAreNotFiniteAreNamedAndChangeNothing) {
  Bench bench;
  bench.update(1);
  const Values parameters = values_of(bench.parameters), moment1 = values_of(bench.optimizer.moment1());
  const auto expect = [&](const char* message) {
    const test::Failure failure =
        failure_of([&] { bench.optimizer.gradient_norm(bench.gradients, bench.pool); });
    EXPECT_EQ(failure.status, Status::non_finite);
    EXPECT_EQ(failure.message, message);
  };
  bench.set_gradient("layers.0.v.bias", INFINITY);
  expect("the gradient of layers.0.v.bias is not finite (its norm is inf); nothing was changed");
  bench.set_gradient("layers.0.k.weight", NAN);
  expect("the gradient of layers.0.k.weight is not finite (its norm is nan); nothing was changed");
  EXPECT_EQ(values_of(bench.parameters), parameters);
  EXPECT_EQ(values_of(bench.optimizer.moment1()), moment1);
  EXPECT_EQ(bench.optimizer.step(), 1u);
}

TEST(Optimizer, GradientsWhoseSquaresOverflowAreRefusedUnlessTheyAreClipped) {
  Bench free({.maximum_gradient_norm = 0}), clipped({.maximum_gradient_norm = 1});
  for (Bench* bench : {&free, &clipped}) {
    Bench::fill(bench->gradients, 1, 0.1f);
    bench->set_gradient("head.weight", 1e30f);
  }
  EXPECT_EQ(failure_of([&] { free.optimizer.gradient_norm(free.gradients, free.pool); }).message,
            "the gradient norm is 1e+30: above 9.22337e+18 its squares are not finite; nothing was changed");
  const double norm = clipped.optimizer.gradient_norm(clipped.gradients, clipped.pool);
  clipped.optimizer.update(clipped.parameters, clipped.gradients, norm, 1e-3, clipped.pool);
  for (const ParameterStore* store :
       {&std::as_const(clipped.parameters), &clipped.optimizer.moment1(), &clipped.optimizer.moment2()})
    for (const auto& values : values_of(*store))
      for (const float x : values) ASSERT_TRUE(std::isfinite(x));
}

TEST(Optimizer, NoMomentsAndNoDecay) {  // the sign of the gradient, then
  Bench bench({.beta1 = 0, .beta2 = 0, .weight_decay = 0, .maximum_gradient_norm = 0});
  const Values before = values_of(bench.parameters);
  bench.update(9, 0.01);
  const Values after = values_of(bench.parameters), g = values_of(bench.gradients);
  for (size_t i = 0; i < g.size(); i++)
    for (size_t k = 0; k < g[i].size(); k++) {
      if (std::abs(g[i][k]) < 1e-3f) continue;
      ASSERT_NEAR(after[i][k], before[i][k] - std::copysign(0.01f, g[i][k]), 1e-6f);
    }
}

TEST(Optimizer, MemoryIsTheAccounts) {
  const auto account = std::make_shared<MemoryAccount>(100000);
  const auto failure = failure_of([&] { Optimizer(test::best_device(), list(), {}, account); });
  EXPECT_EQ(failure.status, Status::out_of_memory);
  EXPECT_NE(failure.message.find("the optimizer's moments"), std::string::npos) << failure.message;
  EXPECT_EQ(account->bytes(), 0u);
}

TEST(Optimizer, WhatMakesNoSenseIsRefusedWithItsValue) {
  const auto refusal = [](const OptimizerOptions& o, double rate = 1e-3) {
    const test::Failure failure = failure_of([&] { validate(o, rate); });
    EXPECT_TRUE(failure.status == Status::invalid_argument) << failure.message;
    return failure.message;
  };
  EXPECT_EQ(refusal({.beta1 = 1}), "beta1 is 1, not between 0 and 0.999999");
  EXPECT_EQ(refusal({.beta2 = -0.1}), "beta2 is -0.1, not between 0 and 0.999999");
  EXPECT_EQ(refusal({.beta2 = NAN}), "beta2 is nan, not between 0 and 0.999999");
  EXPECT_EQ(refusal({.epsilon = 0}), "epsilon is 0, not between 1e-30 and 1");
  EXPECT_EQ(refusal({.epsilon = NAN}), "epsilon is nan, not between 1e-30 and 1");
  EXPECT_EQ(refusal({.weight_decay = -1}), "weight_decay is -1, not a finite number of at least 0");
  EXPECT_EQ(refusal({.weight_decay = INFINITY}), "weight_decay is inf, not a finite number of at least 0");
  EXPECT_EQ(refusal({.weight_decay = 10}, 0.1),
            "weight_decay 10 times learning_rate 0.1 is not below 1: no weight is left");
  EXPECT_EQ(refusal({.maximum_gradient_norm = -2}),
            "maximum_gradient_norm is -2, not a finite number of at least 0");
  EXPECT_EQ(refusal({.maximum_gradient_norm = NAN}),
            "maximum_gradient_norm is nan, not a finite number of at least 0");
  validate({.beta1 = 0, .beta2 = 0, .weight_decay = 0, .maximum_gradient_norm = 0}, 0);
}

}  // namespace
}  // namespace riftco
