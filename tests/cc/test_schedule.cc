// Learning rates by the update's number.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "serve_support.h"
#include "train/schedule.h"

namespace riftco {
namespace {

using test::failure_of;

TEST(Schedule, ConstantHasOnlyAWarmUp) {
  const Schedule s{.learning_rate = 0.4, .warmup_steps = 4};
  EXPECT_EQ(learning_rate_at(s, 1), 0.1);
  EXPECT_EQ(learning_rate_at(s, 3), 0.4 * 0.75);
  for (uint64_t step : {uint64_t(4), uint64_t(5), uint64_t(1) << 53})
    EXPECT_EQ(learning_rate_at(s, step), 0.4);
  EXPECT_EQ(learning_rate_at({.learning_rate = 0.4}, 1), 0.4);
}

TEST(Schedule, LinearEndsAtTheFinalRate) {
  const Schedule s{ScheduleKind::linear, 1, 2, 12, 0.2};
  EXPECT_EQ(learning_rate_at(s, 1), 0.5);
  EXPECT_EQ(learning_rate_at(s, 2), 1);
  for (uint64_t step = 3; step <= 12; step++)
    EXPECT_NEAR(learning_rate_at(s, step), 1 - 0.8 * double(step - 3) / 10, 1e-15) << step;
  EXPECT_EQ(learning_rate_at(s, 13), 0.2);
  EXPECT_EQ(learning_rate_at(s, uint64_t(1) << 60), 0.2);
}

TEST(Schedule, CosineEndsAtTheFinalRate) {
  const Schedule s{ScheduleKind::cosine, 3e-3, 100, 1100, 0.1};
  EXPECT_EQ(learning_rate_at(s, 100), 3e-3);
  EXPECT_EQ(learning_rate_at(s, 101), 3e-3);
  for (uint64_t step = 101; step <= 1100; step++) {
    const double p = double(step - 101) / 1000;
    EXPECT_NEAR(learning_rate_at(s, step), 3e-3 * (0.1 + 0.9 * (1 + std::cos(std::numbers::pi * p)) / 2),
                1e-17);
  }
  EXPECT_EQ(learning_rate_at(s, 1101), 3e-3 * 0.1);
}

TEST(Schedule, NothingButAWarmUp) {
  const Schedule s{ScheduleKind::cosine, 1, 5, 5, 0.5};
  EXPECT_EQ(learning_rate_at(s, 5), 1);
  EXPECT_EQ(learning_rate_at(s, 6), 0.5);
}

TEST(Schedule, WhatMakesNoSenseIsRefusedWithItsValue) {
  const auto refusal = [](const Schedule& s) {
    const test::Failure failure = failure_of([&] { validate(s); });
    EXPECT_TRUE(failure.status == Status::invalid_argument) << failure.message;
    return failure.message;
  };
  EXPECT_EQ(refusal({.learning_rate = -1}), "learning_rate is -1, not between 0 and 1e+06");
  EXPECT_EQ(refusal({.learning_rate = NAN}), "learning_rate is nan, not between 0 and 1e+06");
  EXPECT_EQ(refusal({.learning_rate = INFINITY}), "learning_rate is inf, not between 0 and 1e+06");
  EXPECT_EQ(refusal({.final_rate = 1.5}), "final_rate is 1.5, not a share between 0 and 1");
  EXPECT_EQ(refusal({.final_rate = NAN}), "final_rate is nan, not a share between 0 and 1");
  EXPECT_EQ(refusal({.total_steps = 9}), "total_steps is 9; a constant schedule has no end: 0");
  EXPECT_EQ(refusal({.kind = ScheduleKind::linear}), "total_steps is 0: this schedule needs its end");
  EXPECT_EQ(refusal({.kind = ScheduleKind::cosine, .warmup_steps = 11, .total_steps = 10}),
            "warmup_steps 11 is above total_steps 10");
  validate({.learning_rate = 0});
  validate({.kind = ScheduleKind::cosine, .warmup_steps = 10, .total_steps = 10});
}

}  // namespace
}  // namespace riftco
