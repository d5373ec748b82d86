#include "train/schedule.h"

#include <cinttypes>
#include <numbers>

#include "base/error.h"
#include "core/math.h"

namespace riftco {

void validate(const Schedule& s) {
  if (!(s.learning_rate >= 0 && s.learning_rate <= 1e6))
    fail(Status::invalid_argument, "learning_rate is %g, not between 0 and 1e+06", s.learning_rate);
  if (!(s.final_rate >= 0 && s.final_rate <= 1))
    fail(Status::invalid_argument, "final_rate is %g, not a share between 0 and 1", s.final_rate);
  if (s.kind == ScheduleKind::constant) {
    if (s.total_steps != 0)
      fail(Status::invalid_argument, "total_steps is %" PRIu64 "; a constant schedule has no end: 0",
           s.total_steps);
    return;
  }
  if (s.total_steps == 0) fail(Status::invalid_argument, "total_steps is 0: this schedule needs its end");
  if (s.warmup_steps > s.total_steps)
    fail(Status::invalid_argument, "warmup_steps %" PRIu64 " is above total_steps %" PRIu64, s.warmup_steps,
         s.total_steps);
}

double learning_rate_at(const Schedule& s, uint64_t step) noexcept {
  if (step <= s.warmup_steps) return s.learning_rate * (double(step) / double(s.warmup_steps));
  if (s.kind == ScheduleKind::constant) return s.learning_rate;
  const uint64_t before = step - 1 - s.warmup_steps, all = s.total_steps - s.warmup_steps;
  if (before >= all) return s.learning_rate * s.final_rate;
  const double p = double(before) / double(all);
  if (s.kind == ScheduleKind::linear) return s.learning_rate * (1 + (s.final_rate - 1) * p);
  double sine, cosine;
  math::sin_cos(std::numbers::pi * p, &sine, &cosine);
  return s.learning_rate * (s.final_rate + (1 - s.final_rate) * ((1 + cosine) / 2));
}

}  // namespace riftco
