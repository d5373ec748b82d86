#include "train/trainer.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace riftco {
namespace {

constexpr char kStep[] = "a training step", kLoad[] = "loading a checkpoint";

// Fails with invalid_state while sessions are alive.
void check_sessions(DecoderOnlyTransformer& model, const char* what) {
  const ModelChange change(model, what);
}

// What will be trained, as f32.
std::vector<ParameterInfo> trained_list(const DecoderOnlyTransformer& model) {
  if (model.lora()) return model.lora()->parameters().parameters();
  std::vector<ParameterInfo> list = model.weights().parameters();
  for (ParameterInfo& p : list) {
    if (is_quantised(p.type))
      fail(Status::unsupported,
           "%s is %s: quantised weights cannot be trained; attach adapters, or convert the model to a float "
           "type",
           p.name.c_str(), dtype_info(p.type).name);
    p.type = DType::f32;
  }
  return list;
}

const TrainerOptions& validated(const TrainerOptions& options) {
  validate(options.schedule);
  validate(options.optimizer, options.schedule.learning_rate);
  return options;
}

// With weights that can be trained in place.
std::shared_ptr<DecoderOnlyTransformer> widened(const std::shared_ptr<DecoderOnlyTransformer>& model) {
  const auto is_narrow = [](const ParameterInfo& p) { return p.type != DType::f32; };
  if (!model->lora() && std::ranges::any_of(model->weights().parameters(), is_narrow))
    ModelChange(*model, "widening to f32").widen();
  return model;
}

void copy(const ParameterStore& from, ParameterStore& to) {
  for (size_t i = 0; i < from.parameters().size(); i++)
    if (is_trained(from.parameters()[i])) std::memcpy(to.data(i), from.data(i), from.packed_bytes(i));
}

}  // namespace

Trainer::Trainer(std::shared_ptr<DecoderOnlyTransformer> model, const TrainerOptions& options)
    : model_(std::move(model)),
      lora_(model_->lora()),
      merges_(model_->merge_count()),
      options_(validated(options)),
      gradients_(model_->device(), trained_list(*model_), model_->account(), "the gradients"),
      optimizer_(model_->device(), gradients_.parameters(), options.optimizer, model_->account()),
      network_(widened(model_), options.network) {}

void Trainer::check_adapters() const {
  if (model_->lora() != lora_ || model_->merge_count() != merges_)
    fail(Status::invalid_state, "adapters were attached, detached or merged since the trainer was made");
}

const ParameterStore& Trainer::trained() const noexcept {
  return lora_ ? lora_->parameters() : static_cast<const ParameterStore&>(model_->weights());
}

void Trainer::check_state() const {
  check_adapters();
  check_sessions(*model_, kStep);
}

TrainingMetrics Trainer::step(const TrainingBatch& batch) {
  check_state();
  check_batch(model_->config(), batch);
  has_gradients_ = false;
  TrainingMetrics metrics{};
  metrics.target_count = target_count(batch);
  uint64_t epoch;
  {
    const auto lock = model_->reading();
    epoch = model_->parameter_epoch();
    metrics.loss = network_.loss_and_gradients(batch, gradients_);
  }
  has_gradients_ = true;
  metrics.gradient_norm = optimizer_.gradient_norm(gradients_, model_->threads());
  metrics.learning_rate = learning_rate_at(options_.schedule, optimizer_.step() + 1);
  check_cancel(batch.cancel, kStep);
  ModelChange change(*model_, kStep);
  if (model_->parameter_epoch() != epoch)
    fail(Status::invalid_state, "the model's parameters were changed during the step");
  optimizer_.update(lora_ ? lora_->parameters() : change.weights(), gradients_, metrics.gradient_norm,
                    metrics.learning_rate, model_->threads());
  change.commit();
  metrics.step = optimizer_.step();
  return metrics;
}

uint64_t Trainer::trained_count() const noexcept {
  uint64_t count = 0;
  for (const ParameterInfo& p : gradients_.parameters())
    if (is_trained(p)) count += uint64_t(p.rows) * p.columns;
  return count;
}

size_t Trainer::trained_index(std::string_view name) const {
  const auto index = gradients_.find(name);
  if (!index || !is_trained(gradients_.parameters()[*index]))
    fail(Status::out_of_range, "the trainer has no parameter %s", quoted(name.data(), name.size()).c_str());
  return *index;
}

void Trainer::check_gradients() const {
  if (!has_gradients_) fail(Status::invalid_state, "there are no gradients: no step has computed them");
}

const ParameterInfo& Trainer::gradient_info(std::string_view name) const {
  check_gradients();
  return gradients_.parameters()[trained_index(name)];
}

void Trainer::read_gradient(std::string_view name, float* values) const {
  gradients_.read_floats(trained_index(name), values);
}

CheckpointOrigin Trainer::origin() const {
  CheckpointOrigin origin{.config = model_->config(), .lora = std::nullopt};
  if (lora_) {
    const LoraOptions& o = lora_->options();
    origin.lora = {
        .rank = o.rank, .targets = o.targets, .alpha = o.alpha, .base = model_->weights_fingerprint()};
  }
  return origin;
}

void Trainer::save(std::string_view path, std::string_view state, const CancelFlag* cancel) const {
  check_adapters();
  const CheckpointOrigin from = origin();
  const auto lock = model_->reading();
  write_checkpoint(path, from, optimizer_.step(), state,
                   {trained(), optimizer_.moment1(), optimizer_.moment2()}, cancel);
}

void Trainer::load(std::string_view path, const CancelFlag* cancel) {
  check_adapters();
  check_sessions(*model_, kLoad);
  const auto store = [&](const char* what) {
    return std::make_unique<ParameterStore>(model_->device(), gradients_.parameters(), model_->account(),
                                            what);
  };
  auto moment1 = store("the moments of a checkpoint"), moment2 = store("the moments of a checkpoint");
  has_gradients_ = false;  // their memory takes the parameters until all is read
  const uint64_t step = read_checkpoint(path, origin(), {gradients_, *moment1, *moment2}, cancel);
  ModelChange change(*model_, kLoad);
  check_adapters();
  if (lora_) {
    copy(gradients_, lora_->parameters());
  } else {
    copy(gradients_, change.weights());
  }
  change.commit();
  optimizer_.restore(step, std::move(moment1), std::move(moment2));
}

}  // namespace riftco
