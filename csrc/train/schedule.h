// The learning rate of each update.
#pragma once
#include <cstdint>

namespace riftco {

enum class ScheduleKind : uint8_t { constant, linear, cosine };

struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  double learning_rate = 3e-4;  // after the warm-up
  uint64_t warmup_steps = 0;
  uint64_t total_steps = 0;  // linear, cosine: updates until final_rate is reached; constant: 0
  double final_rate = 0;     // as a share of learning_rate
};

// Fails with invalid_argument, naming field and value.
void validate(const Schedule& schedule);

// Of update number `step`, which counts from 1; the same on every machine. Update s of the warm-up has s / warmup_steps of the
// learning rate. With n = s - 1 - warmup_steps of the m = total_steps - warmup_steps updates behind it made before, p = n / m:
//   linear  1 + (final_rate - 1) p of it,  cosine  final_rate + (1 - final_rate) (1 + cos(pi p)) / 2;  p is at most 1
double learning_rate_at(const Schedule& schedule, uint64_t step) noexcept;

}  // namespace riftco
