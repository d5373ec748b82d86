// Training: the parameters that a model serves, trained whole or through its adapters.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "riftco/train.h"
#include "riftco_transformer/artifacts/model.hpp"

namespace riftco_transformer::stages::training {

inline constexpr std::uint32_t NoTarget = RT_NO_TARGET;  // of a position that does not count

// Of the learning rate behind the warm-up.
enum class Schedule : std::int32_t {
  Constant = RT_SCHEDULE_CONSTANT,
  Linear = RT_SCHEDULE_LINEAR,
  Cosine = RT_SCHEDULE_COSINE
};

// Flash keeps row statistics, Materialized [sequences, heads, length, length] probabilities. Serving: evaluation alone.
enum class Attention : std::int32_t {
  Flash = RT_ATTENTION_FLASH,
  Materialized = RT_ATTENTION_MATERIALIZED,
  Serving = RT_ATTENTION_SERVING
};

// rt_trainer_options says what each is.
struct TrainerConfig {
  double learning_rate = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  double maximum_gradient_norm = 1;  // 0: no clipping
  Schedule schedule = Schedule::Constant;
  std::uint64_t warmup_steps = 0;
  std::uint64_t total_steps = 0;  // of a linear or cosine schedule
  double final_rate = 0;          // as a share of learning_rate
  Attention attention = Attention::Flash;
  std::uint64_t micro_batch = 0;  // sequences worked on at a time; 0: all
  bool recompute = false;
};

// Sequences of one length: tokens.size() is a multiple of it, and there are as many targets.
struct TrainingBatch {
  std::span<const std::uint32_t> tokens;
  std::span<const std::uint32_t> targets;  // what each position is to predict, or NoTarget
  std::uint64_t length;
  const CancelFlag* cancel = nullptr;
};

struct Evaluation {
  double loss;  // mean cross-entropy over the counted targets, nats
  std::uint64_t target_count;
};

// The struct of the C ABI, which refers to the same arrays.
inline rt_training_batch to_c(const TrainingBatch& batch) {
  if (batch.length == 0 || batch.tokens.size() % batch.length != 0 ||
      batch.targets.size() != batch.tokens.size())
    throw Error(RT_INVALID_ARGUMENT, "a batch needs whole sequences, and a target for each token");
  rt_training_batch given{};
  given.struct_size = sizeof given;
  given.tokens = batch.tokens.data();
  given.targets = batch.targets.data();
  given.sequences = batch.tokens.size() / batch.length;
  given.length = batch.length;
  given.cancel = batch.cancel ? batch.cancel->get() : nullptr;
  return given;
}

// Changes nothing; sessions may be alive.
inline Evaluation evaluate(const artifacts::Model& model, const TrainingBatch& batch,
                           Attention attention = Attention::Serving) {
  const rt_training_batch given = to_c(batch);
  Evaluation result{};
  detail::check(rt_model_evaluate(model.get(), &given, static_cast<std::int32_t>(attention), &result.loss,
                                  &result.target_count));
  return result;
}

// AdamW over the adapters where the model has some, else over all parameters. A call that throws has changed nothing. The
// model may be destroyed before it.
class Trainer {
 public:
  explicit Trainer(const artifacts::Model& model, const TrainerConfig& config = {}) {
    auto options = detail::defaults<rt_trainer_options>(rt_trainer_options_init);
    options.learning_rate = config.learning_rate;
    options.beta1 = config.beta1;
    options.beta2 = config.beta2;
    options.epsilon = config.epsilon;
    options.weight_decay = config.weight_decay;
    options.maximum_gradient_norm = config.maximum_gradient_norm;
    options.schedule = static_cast<std::int32_t>(config.schedule);
    options.attention = static_cast<std::int32_t>(config.attention);
    options.warmup_steps = config.warmup_steps;
    options.total_steps = config.total_steps;
    options.final_rate = config.final_rate;
    options.micro_batch = config.micro_batch;
    options.recompute = config.recompute;
    handle_ = detail::make<Handle>(rt_trainer_create, model.get(), &options);
  }

  // One update. RT_INVALID_STATE while decode sessions of the model are alive.
  rt_training_metrics step(const TrainingBatch& batch) {
    const rt_training_batch given = to_c(batch);
    rt_training_metrics metrics{};
    metrics.struct_size = sizeof metrics;
    detail::check(rt_trainer_step(get(), &given, &metrics));
    return metrics;
  }

  // Of a trained parameter in the last step, before clipping.
  std::vector<float> gradient(std::string_view name) const {
    std::uint64_t count = 0;
    detail::check(rt_trainer_read_gradient(get(), name.data(), name.size(), nullptr, 0, &count));
    std::vector<float> values(count);
    detail::check(rt_trainer_read_gradient(get(), name.data(), name.size(), values.data(), count, &count));
    return values;
  }

  rt_trainer_info info() const {
    rt_trainer_info info{};
    info.struct_size = sizeof info;
    detail::check(rt_trainer_get_info(get(), &info));
    return info;
  }

  // Writes a checkpoint, whole or not at all, with a text of the caller's.
  void save(std::string_view path, std::string_view state = {}, const CancelFlag* cancel = nullptr) const {
    detail::check(rt_trainer_save(get(), path.data(), path.size(), state.data(), state.size(),
                                  cancel ? cancel->get() : nullptr));
  }

  // Goes on from a checkpoint: the steps after it give the bits of a run that was not stopped.
  void load(std::string_view path, const CancelFlag* cancel = nullptr) {
    detail::check(rt_trainer_load(get(), path.data(), path.size(), cancel ? cancel->get() : nullptr));
  }

  rt_trainer* get() const noexcept { return handle_.get(); }

 private:
  using Handle = detail::Owned<rt_trainer, rt_trainer_release>;
  Handle handle_;
};

// The text that Trainer::save was given.
inline std::string checkpoint_state(std::string_view path) {
  std::uint64_t size = 0;
  detail::check(rt_checkpoint_state(path.data(), path.size(), nullptr, 0, &size));
  std::string state(size, '\0');
  detail::check(rt_checkpoint_state(path.data(), path.size(), state.data(), size, &size));
  return state;
}

}  // namespace riftco_transformer::stages::training
