#include "riftco/train.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "capi/arguments.h"
#include "capi/handles.h"
#include "core/math.h"
#include "train/trainer.h"

using namespace riftco;
using namespace riftco::capi;

static_assert(RT_NO_TARGET == kNoTarget);
static_assert(RT_ATTENTION_FLASH == int32_t(TrainingAttention::flash));
static_assert(RT_ATTENTION_MATERIALIZED == int32_t(TrainingAttention::materialized));
static_assert(RT_SCHEDULE_LINEAR == int32_t(ScheduleKind::linear));
static_assert(RT_SCHEDULE_COSINE == int32_t(ScheduleKind::cosine));

namespace {

rt_trainer_options trainer_defaults() {
  const TrainerOptions defaults;
  return {.struct_size = sizeof(rt_trainer_options),
          .learning_rate = defaults.schedule.learning_rate,
          .beta1 = defaults.optimizer.beta1,
          .beta2 = defaults.optimizer.beta2,
          .epsilon = defaults.optimizer.epsilon,
          .weight_decay = defaults.optimizer.weight_decay,
          .maximum_gradient_norm = defaults.optimizer.maximum_gradient_norm,
          .schedule = int32_t(defaults.schedule.kind),
          .attention = int32_t(defaults.network.attention),
          .warmup_steps = 0,
          .total_steps = 0,
          .final_rate = 0,
          .micro_batch = 0,
          .recompute = 0,
          .reserved = 0};
}

TrainerOptions trainer_options(const rt_trainer_options* given) {
  const rt_trainer_options o = read_struct(given, trainer_defaults(), "options");
  check_reserved(o.reserved, "options.reserved");
  if (o.micro_batch > UINT32_MAX)
    fail(Status::invalid_argument, "options.micro_batch is %" PRIu64 ", above %u", o.micro_batch, UINT32_MAX);
  return {
      .optimizer = {.beta1 = o.beta1,
                    .beta2 = o.beta2,
                    .epsilon = o.epsilon,
                    .weight_decay = o.weight_decay,
                    .maximum_gradient_norm = o.maximum_gradient_norm},
      .schedule = {.kind = choice_argument<ScheduleKind>(o.schedule, RT_SCHEDULE_COSINE, "options.schedule"),
                   .learning_rate = o.learning_rate,
                   .warmup_steps = o.warmup_steps,
                   .total_steps = o.total_steps,
                   .final_rate = o.final_rate},
      .network = {.attention = choice_argument<TrainingAttention>(o.attention, RT_ATTENTION_MATERIALIZED,
                                                                  "options.attention"),
                  .micro_batch = uint32_t(o.micro_batch),
                  .recompute = flag_argument(o.recompute, "options.recompute")}};
}

TrainingBatch batch_argument(const rt_training_batch* given, const ModelConfig& config) {
  if (!given) fail(Status::invalid_argument, "batch is NULL");
  const rt_training_batch batch = read_struct(given, rt_training_batch{}, "batch");
  if (batch.sequences - 1 >= UINT32_MAX || batch.length - 1 >= UINT32_MAX)
    fail(Status::invalid_argument, "a batch of %" PRIu64 " sequences of length %" PRIu64, batch.sequences,
         batch.length);
  const uint64_t count = batch.sequences * batch.length;
  const TrainingBatch checked{.tokens = array_argument(batch.tokens, count, "batch.tokens"),
                              .targets = array_argument(batch.targets, count, "batch.targets"),
                              .sequences = uint32_t(batch.sequences),
                              .length = uint32_t(batch.length),
                              .cancel = cancel_flag(batch.cancel, "batch.cancel")};
  check_batch(config, checked);
  return checked;
}

// Negative log probability of a token.
double token_loss(const KernelTable& kernels, std::span<const float> logits, uint32_t token,
                  std::vector<float>& scratch) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  scratch.resize(logits.size());
  const float total = kernels.exp_row(logits.data(), logits.size(), largest, 1, scratch.data());
  return math::log(double(total)) - (double(logits[token]) - double(largest));
}

double serving_loss(const std::shared_ptr<const DecoderOnlyTransformer>& model, const TrainingBatch& batch) {
  const KernelTable& kernels = *model->device().kernels;
  std::vector<float> scratch;
  double sum = 0;
  for (size_t s = 0; s < batch.sequences; s++) {
    const std::span targets = batch.targets.subspan(s * batch.length, batch.length);
    each_logits(model, batch.tokens.subspan(s * batch.length, batch.length), batch.cancel,
                [&](size_t i, std::span<const float> logits) {
                  if (targets[i] != kNoTarget) sum += token_loss(kernels, logits, targets[i], scratch);
                });
  }
  return sum / double(target_count(batch));
}

double training_loss(const std::shared_ptr<const DecoderOnlyTransformer>& model, const TrainingBatch& batch,
                     TrainingAttention attention) {
  TrainingNetwork network(model, {.attention = attention, .micro_batch = 1});  // small memory
  const auto lock = model->reading();
  return network.loss(batch);
}

}  // namespace

rt_status rt_model_evaluate(const rt_model* model, const rt_training_batch* batch, int32_t attention,
                            double* loss, uint64_t* counted) {
  return guarded(__func__, [&] {
    const auto& object = checked(model, "model").object;
    const TrainingBatch given = batch_argument(batch, object->config());
    choice_argument<int32_t>(attention, RT_ATTENTION_SERVING, "attention");
    double& result = output_argument(loss, "loss");
    const double value = attention == RT_ATTENTION_SERVING
                             ? serving_loss(object, given)
                             : training_loss(object, given, TrainingAttention(attention));
    result = value;
    if (counted) *counted = target_count(given);
  });
}

rt_status rt_trainer_options_init(rt_trainer_options* options, uint64_t size) {
  return guarded(__func__, [&] { init_struct(options, size, trainer_defaults(), "options"); });
}

rt_status rt_trainer_create(rt_model* model, const rt_trainer_options* options, rt_trainer** trainer) {
  return guarded_create(__func__, "trainer", trainer, [&] {
    const auto& object = checked(model, "model").object;
    return std::make_unique<rt_trainer>(object, trainer_options(options));
  });
}

rt_status rt_trainer_step(rt_trainer* trainer, const rt_training_batch* batch, rt_training_metrics* metrics) {
  return guarded(__func__, [&] {
    Trainer& object = checked(trainer, "trainer").object;
    object.check_state();
    const TrainingBatch given = batch_argument(batch, object.model().config());
    std::optional<OutputStruct<rt_training_metrics>> output;
    if (metrics) output.emplace(metrics, "metrics");
    const TrainingMetrics result = object.step(given);
    if (output)
      output->write({.struct_size = 0,
                     .loss = result.loss,
                     .gradient_norm = result.gradient_norm,
                     .learning_rate = result.learning_rate,
                     .target_count = result.target_count,
                     .step = result.step});
  });
}

rt_status rt_trainer_read_gradient(const rt_trainer* trainer, const char* name, uint64_t name_size,
                                   float* values, uint64_t capacity, uint64_t* required) {
  return guarded(__func__, [&] {
    const Trainer& object = checked(trainer, "trainer").object;
    object.check_gradients();
    const std::string_view wanted = text_argument(name, name_size, "name");
    check_output(values, capacity, required, "values");
    const ParameterInfo& p = object.gradient_info(wanted);
    *required = uint64_t(p.rows) * p.columns;
    if (!values) return;
    check_capacity(capacity, *required, "values");
    object.read_gradient(wanted, values);
  });
}

rt_status rt_trainer_get_info(const rt_trainer* trainer, rt_trainer_info* info) {
  return guarded(__func__, [&] {
    const Trainer& object = checked(trainer, "trainer").object;
    OutputStruct(info, "info")
        .write({.struct_size = 0,
                .step = object.steps(),
                .trained_count = object.trained_count(),
                .optimizer_bytes = object.optimizer_bytes(),
                .activation_bytes = object.activation_bytes()});
  });
}

rt_status rt_trainer_save(const rt_trainer* trainer, const char* path, uint64_t path_size, const char* state,
                          uint64_t state_size, const rt_cancel* cancel) {
  return guarded(__func__, [&] {
    const Trainer& object = checked(trainer, "trainer").object;
    const CancelFlag* flag = cancel_flag(cancel, "cancel");
    object.save(text_argument(path, path_size, "path"), text_argument(state, state_size, "state"), flag);
  });
}

rt_status rt_trainer_load(rt_trainer* trainer, const char* path, uint64_t path_size,
                          const rt_cancel* cancel) {
  return guarded(__func__, [&] {
    Trainer& object = checked(trainer, "trainer").object;
    const CancelFlag* flag = cancel_flag(cancel, "cancel");
    object.load(text_argument(path, path_size, "path"), flag);
  });
}

rt_status rt_checkpoint_state(const char* path, uint64_t path_size, char* state, uint64_t capacity,
                              uint64_t* required) {
  return guarded(__func__, [&] {
    const std::string_view file = text_argument(path, path_size, "path");
    check_output(state, capacity, required, "state");
    write_output<char>(checkpoint_state(file), state, capacity, required, "state");
  });
}

void rt_trainer_release(rt_trainer* trainer) { release(trainer); }
