// The C++ classes of training: test_training REPORT SCRATCH_FOLDER. Failures go to the report; nothing is printed.
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <type_traits>
#include <vector>

#include "riftco_transformer/stages/serving/stack.hpp"
#include "riftco_transformer/stages/training/trainer.hpp"

namespace artifacts = riftco_transformer::artifacts;
namespace serve = riftco_transformer::stages::serving;
namespace training = riftco_transformer::stages::training;
using riftco_transformer::CancelFlag;
using riftco_transformer::Error;

namespace {

std::ofstream report;
bool failed = false;

#define CHECK(condition)                                             \
  do {                                                               \
    if (!(condition)) {                                              \
      failed = true;                                                 \
      report << __FILE__ << ':' << __LINE__ << ": " #condition "\n"; \
    }                                                                \
  } while (0)

// `f` throws an Error with this status.
template <class F>
bool throws(rt_status status, F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.status() == status;
  }
  return false;
}

static_assert(std::is_aggregate_v<training::TrainerConfig> && std::is_aggregate_v<training::TrainingBatch>);
static_assert(std::is_move_constructible_v<training::Trainer> &&
              !std::is_copy_constructible_v<training::Trainer>);

void run(const std::string& checkpoint) {
  rt_model_config config;
  config.struct_size = sizeof config;
  riftco_transformer::detail::check(rt_model_config_init(&config, sizeof config));
  config.layer_count = 1;
  const artifacts::Tokenizer tokenizer = artifacts::Tokenizer::byte();
  const artifacts::Model model(config, tokenizer, 1), other(config, tokenizer, 1);
  const std::vector<std::uint32_t> ids = tokenizer.encode("The keeper of the lamp was Ada. Was she?");
  const std::size_t length = ids.size() / 2;
  std::vector<std::uint32_t> targets(ids.begin() + 1, ids.end());
  targets.push_back(training::NoTarget);
  const training::TrainingBatch batch{ids, targets, length};

  // The C call's defaults.
  const auto defaults = riftco_transformer::detail::defaults<rt_trainer_options>(rt_trainer_options_init);
  const training::TrainerConfig same;
  CHECK(same.learning_rate == defaults.learning_rate && same.beta1 == defaults.beta1 &&
        same.beta2 == defaults.beta2 && same.epsilon == defaults.epsilon &&
        same.weight_decay == defaults.weight_decay &&
        same.maximum_gradient_norm == defaults.maximum_gradient_norm &&
        same.final_rate == defaults.final_rate);

  const training::TrainerConfig settings{.learning_rate = 0.01,
                                         .schedule = training::Schedule::Cosine,
                                         .warmup_steps = 2,
                                         .total_steps = 10,
                                         .attention = training::Attention::Materialized,
                                         .recompute = true};
  training::Trainer trainer(model, settings);
  CHECK(throws(RT_INVALID_STATE, [&] { trainer.gradient("head.weight"); }));
  const training::Evaluation before = training::evaluate(model, batch);
  CHECK(std::abs(before.loss - training::evaluate(model, batch, training::Attention::Flash).loss) < 1e-4);
  CHECK(before.target_count == ids.size() - 1);
  const rt_training_metrics first = trainer.step(batch);
  CHECK(first.step == 1 && std::abs(first.loss - before.loss) < 1e-4 && first.learning_rate == 0.005);
  CHECK(trainer.gradient("head.weight").size() == std::size_t{config.vocabulary_size} * config.width);
  trainer.save(checkpoint, "state");
  CHECK(training::checkpoint_state(checkpoint) == "state");
  training::Trainer resumed(other, settings);
  resumed.load(checkpoint);
  CHECK(resumed.info().step == 1);
  for (int i = 0; i < 3; i++) CHECK(trainer.step(batch).loss == resumed.step(batch).loss);
  CHECK(training::evaluate(model, batch).loss < before.loss - 0.5);

  const serve::DecodeSession session(model);
  CHECK(throws(RT_INVALID_STATE, [&] { trainer.step(batch); }));
  CHECK(throws(RT_INVALID_ARGUMENT, [&] { resumed.step({ids, targets, length - 1}); }));
  CHECK(throws(RT_INVALID_ARGUMENT, [&] { resumed.step({ids, {}, length}); }));
  CHECK(throws(RT_INVALID_ARGUMENT, [&] { resumed.step({ids, targets, 0}); }));
  CancelFlag cancel;
  cancel.set();
  CHECK(throws(RT_CANCELLED, [&] { resumed.step({ids, targets, length, &cancel}); }));
  CHECK(throws(RT_CANCELLED, [&] { training::evaluate(other, {ids, targets, length, &cancel}); }));
  CHECK(throws(RT_CANCELLED, [&] { resumed.load(checkpoint, &cancel); }));
  CHECK(resumed.info().step == 4);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 99;
  report.open(argv[1]);
  try {
    run(std::string(argv[2]) + "/a.checkpoint");
  } catch (const std::exception& error) {
    report << error.what() << '\n';
    failed = true;
  }
  return failed ? 1 : 0;
}
