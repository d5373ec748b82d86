// The sampler against a plain version that sorts everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/random.h"
#include "serve/sampler.h"
#include "serve_support.h"

namespace riftco {
namespace {

using test::failure_of;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Random, PhiloxGivesThePublishedVectors) {
  // Known answers of Philox4x32-10 from the Random123 distribution (kat_vectors).
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(UINT64_MAX, UINT64_MAX, UINT64_MAX),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

std::vector<float> random_logits(uint32_t count, uint64_t seed, float spread) {
  std::vector<float> logits(count);
  for (uint32_t i = 0; i < count; ++i) logits[i] = spread * (float(philox(seed, i, 3)[0]) * 0x1p-31f - 1.0f);
  return logits;
}

// The documented steps, one after another, on a sorted list.
uint32_t plain_sample(const std::vector<float>& logits, const SamplerOptions& options, uint64_t index) {
  struct Entry {
    uint32_t token;
    float logit;
    uint64_t mass;
  };
  const float maximum = *std::max_element(logits.begin(), logits.end());
  std::vector<float> e(logits.size());
  test::best_device().kernels->exp_row(logits.data(), logits.size(), maximum, 1.0f / options.temperature,
                                       e.data());
  std::vector<Entry> entries;
  for (uint32_t i = 0; i < logits.size(); ++i)
    entries.push_back({i, logits[i], uint64_t(std::ldexp(double(e[i]), 40))});
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.logit > b.logit; });
  if (options.top_k && options.top_k < entries.size()) entries.resize(options.top_k);
  const auto total = [&] {
    return std::accumulate(entries.begin(), entries.end(), uint64_t(0),
                           [](uint64_t sum, const Entry& x) { return sum + x.mass; });
  };
  if (options.top_p < 1) {
    const double target = double(options.top_p) * double(total());
    uint64_t sum = 0;
    size_t keep = 0;
    while (double(sum) < target) sum += entries[keep++].mass;
    entries.resize(std::max<size_t>(keep, 1));
  }
  if (options.min_p > 0)
    std::erase_if(entries, [&](const Entry& x) { return double(x.mass) < double(options.min_p) * 0x1p40; });
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.token < b.token; });
  uint64_t rest = uint64_t(static_cast<long double>(random_bits(options.seed, index)) * 0x1p-64L *
                           static_cast<long double>(total()));
  for (const Entry& entry : entries) {
    if (rest < entry.mass) return entry.token;
    rest -= entry.mass;
  }
  return UINT32_MAX;
}

TEST(Sampler, EqualsThePlainVersion) {
  uint64_t seed = 0;
  for (uint32_t vocabulary : {1u, 2u, 7u, 300u, 5000u}) {
    Sampler sampler(*test::best_device().kernels, vocabulary);
    for (float spread : {0.0f, 0.5f, 8.0f, 300.0f}) {
      const auto logits = random_logits(vocabulary, ++seed, spread);
      for (float temperature : {1.0f, 0.7f, 3.0f, 1e-3f, 1e-44f, 1e30f}) {
        for (const auto& [top_k, top_p, min_p] :
             std::initializer_list<std::tuple<uint32_t, float, float>>{{0, 1.0f, 0.0f},
                                                                       {1, 1.0f, 0.0f},
                                                                       {40, 1.0f, 0.0f},
                                                                       {0, 0.9f, 0.0f},
                                                                       {0, 1e-9f, 0.0f},
                                                                       {0, 1.0f, 0.1f},
                                                                       {0, 1.0f, 1.0f},
                                                                       {5, 0.5f, 0.05f},
                                                                       {100, 0.999f, 0.001f},
                                                                       {UINT32_MAX, 0.3f, 0.0f}}) {
          const SamplerOptions options{temperature, top_k, top_p, min_p, seed};
          for (uint64_t index = 0; index < 4; ++index) {
            if (temperature == 1e-44f) {  // its reciprocal is not finite: as greedy among equals
              ASSERT_EQ(logits[sampler.sample(logits, logits, options, index).token],
                        *std::max_element(logits.begin(), logits.end()));
              continue;
            }
            ASSERT_EQ(sampler.sample(logits, logits, options, index).token,
                      plain_sample(logits, options, index))
                << vocabulary << ' ' << spread << ' ' << temperature << ' ' << top_k << ' ' << top_p << ' '
                << min_p;
          }
        }
      }
    }
  }
}

TEST(Sampler, TiesAreCutByTheLowestId) {
  std::vector<float> logits(100, -1.0f);
  for (uint32_t i : {10u, 20u, 30u, 40u}) logits[i] = 2.0f;
  logits[20] = 2.0f;
  logits[50] = 0.0f;
  logits[51] = -0.0f;
  Sampler sampler(*test::best_device().kernels, 100);
  std::vector<bool> seen(100);
  for (uint64_t index = 0; index < 300; ++index)
    seen[sampler.sample(logits, logits, {.temperature = 1, .top_k = 3}, index).token] = true;
  EXPECT_TRUE(seen[10] && seen[20] && seen[30]);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 3);
  EXPECT_EQ(sampler.sample(logits, logits, {}, 0).token, 10u);
  seen.assign(100, false);
  for (uint64_t index = 0; index < 2000; ++index)
    seen[sampler.sample(logits, logits, {.temperature = 2, .top_k = 5}, index).token] = true;
  EXPECT_TRUE(seen[50]);
  EXPECT_FALSE(seen[51]) << "the zeros are equal";
}

TEST(Sampler, FrequenciesFollowTheDistribution) {
  const std::vector<float> logits{1.0f, 0.0f, 2.0f, -kInfinity, 1.5f};
  Sampler sampler(*test::best_device().kernels, 5);
  const double temperature = 0.8;
  std::vector<double> expected(5), counts(5);
  double sum = 0;
  for (size_t i = 0; i < 5; ++i) sum += expected[i] = std::exp(double(logits[i]) / temperature);
  constexpr int kDraws = 20000;
  for (uint64_t i = 0; i < kDraws; ++i)
    counts[sampler.sample(logits, logits, {.temperature = float(temperature), .seed = 42}, i).token]++;
  EXPECT_EQ(counts[3], 0);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(counts[i] / kDraws, expected[i] / sum, 0.012) << i;
}

TEST(Sampler, LogProbabilityIsOfTheRowAsItIs) {
  for (float spread : {0.1f, 4.0f, 40.0f}) {
    const auto logits = random_logits(500, 77, spread);
    Sampler sampler(*test::best_device().kernels, 500);
    double sum = 0;
    for (float x : logits) sum += std::exp(double(x));
    for (uint64_t index = 0; index < 20; ++index) {
      const auto [token, log_probability, processed] =
          sampler.sample(logits, logits, {.temperature = 1.7f, .top_k = 50, .top_p = 0.9f}, index);
      EXPECT_NEAR(log_probability, double(logits[token]) - std::log(sum), 2e-6 * (1 + spread));
    }
    const auto greedy = sampler.sample(logits, logits, {}, 0);
    EXPECT_NEAR(greedy.log_probability, double(logits[greedy.token]) - std::log(sum), 2e-6 * (1 + spread));
  }
}

TEST(Sampler, SameSeedSameTokenOnEveryInstructionSet) {
  const auto logits = random_logits(3001, 5, 6.0f);
  const SamplerOptions options{1.1f, 200, 0.95f, 0.001f, 99};
  for (CpuIsa isa : test::available_isas()) {
    Sampler sampler(*cpu_kernels(isa), 3001), expected(*cpu_kernels(CpuIsa::scalar), 3001);
    for (uint64_t index = 0; index < 50; ++index) {
      const auto a = sampler.sample(logits, logits, options, index),
                 b = expected.sample(logits, logits, options, index);
      EXPECT_EQ(a.token, b.token);
      EXPECT_EQ(a.log_probability, b.log_probability);
    }
  }
}

TEST(Sampler, RowsWithoutADistributionAreRefused) {
  Sampler sampler(*test::best_device().kernels, 3);
  for (float temperature : {0.0f, 1.0f}) {
    const auto status = [&](std::vector<float> row) {
      return failure_of([&] { sampler.sample(row, row, {.temperature = temperature}, 0); }).status;
    };
    EXPECT_EQ(status({-kInfinity, 1.0f, -kInfinity}), Status::ok);
    EXPECT_EQ(status({-kInfinity, -kInfinity, -kInfinity}), Status::non_finite);
    EXPECT_EQ(status({1.0f, NAN, 2.0f}), Status::non_finite);
    EXPECT_EQ(status({1.0f, 2.0f, kInfinity}), Status::non_finite);
    EXPECT_EQ(status({3e38f, -3e38f, 0.0f}), Status::ok);
  }
  const auto failure = failure_of([&] {
    const std::vector<float> row{0, NAN, 0};
    sampler.sample(row, row, {}, 0);
  });
  EXPECT_EQ(failure.message, "the logit of token 1 is nan");
}

TEST(Sampler, OptionsAreChecked) {
  const auto status = [](SamplerOptions options) { return failure_of([&] { validate(options); }).status; };
  EXPECT_EQ(status({}), Status::ok);
  EXPECT_EQ(status({.temperature = 2, .top_k = 7, .top_p = 0.1f, .min_p = 1}), Status::ok);
  for (float bad : {-1.0f, NAN, kInfinity}) EXPECT_EQ(status({.temperature = bad}), Status::invalid_argument);
  for (float bad : {0.0f, -0.5f, 1.1f, NAN}) EXPECT_EQ(status({.top_p = bad}), Status::invalid_argument);
  for (float bad : {-0.1f, 1.1f, NAN}) EXPECT_EQ(status({.min_p = bad}), Status::invalid_argument);
  EXPECT_EQ(failure_of([] { validate({.top_p = 2}); }).message, "top_p 2 is not in (0, 1]");
}

}  // namespace
}  // namespace riftco
