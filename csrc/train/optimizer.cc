#include "train/optimizer.h"

#include <cinttypes>
#include <cmath>

#include "base/error.h"
#include "core/math.h"

namespace riftco {
namespace {

// Of a packed parameter, as sum_squares wants them: a vector is a matrix of one input.
uint32_t outputs_of(const ParameterInfo& p) { return p.is_vector ? p.columns : p.rows; }
uint32_t inputs_of(const ParameterInfo& p) { return p.is_vector ? 1 : p.columns; }

float* floats(const ParameterStore& store, size_t index) {
  return reinterpret_cast<float*>(store.data(index));
}

// value^step; the power function wants a positive base.
double power(double base, uint64_t step) { return base == 0 ? 0 : math::pow(base, double(step)); }

// Gradients of this size have squares that are floats.
constexpr double kLargestNorm = 0x1p63;

void check_beta(double value, const char* name) {  // as a float too it is below 1
  if (!(value >= 0 && value <= 0.999999))
    fail(Status::invalid_argument, "%s is %g, not between 0 and 0.999999", name, value);
}

}  // namespace

void validate(const OptimizerOptions& o, double learning_rate) {
  check_beta(o.beta1, "beta1");
  check_beta(o.beta2, "beta2");
  if (!(o.epsilon >= 1e-30 && o.epsilon <= 1))
    fail(Status::invalid_argument, "epsilon is %g, not between 1e-30 and 1", o.epsilon);
  if (!(std::isfinite(o.weight_decay) && o.weight_decay >= 0))
    fail(Status::invalid_argument, "weight_decay is %g, not a finite number of at least 0", o.weight_decay);
  if (!(learning_rate * o.weight_decay < 1))
    fail(Status::invalid_argument, "weight_decay %g times learning_rate %g is not below 1: no weight is left",
         o.weight_decay, learning_rate);
  if (!(std::isfinite(o.maximum_gradient_norm) && o.maximum_gradient_norm >= 0))
    fail(Status::invalid_argument, "maximum_gradient_norm is %g, not a finite number of at least 0",
         o.maximum_gradient_norm);
}

bool is_trained(const ParameterInfo& p) noexcept { return p.name != "rotary.factors"; }

bool decays(const ParameterInfo& p) noexcept { return !p.is_vector && !p.name.starts_with("embedding."); }

Optimizer::Optimizer(const Device& device, const std::vector<ParameterInfo>& parameters,
                     const OptimizerOptions& options, const std::shared_ptr<MemoryAccount>& account)
    : options_(options),
      moment1_(std::make_unique<ParameterStore>(device, parameters, account, "the optimizer's moments")),
      moment2_(std::make_unique<ParameterStore>(device, parameters, account, "the optimizer's moments")) {
  size_t outputs = 0;
  for (const ParameterInfo& p : parameters) outputs += outputs_of(p);
  sums_ = Buffer(account, outputs * sizeof(double), "the sums of squared gradients");
}

size_t Optimizer::bytes() const noexcept { return moment1_->bytes() + moment2_->bytes() + sums_.size(); }

double Optimizer::gradient_norm(const ParameterStore& gradients, ThreadPool& threads) {
  const std::vector<ParameterInfo>& parameters = gradients.parameters();
  const TrainingKernels& kernels = *gradients.device().training;
  threads.run([&](const Region& region) {
    double* sums = sums_.as<double>();
    for (size_t i = 0; i < parameters.size(); sums += outputs_of(parameters[i++]))
      kernels.sum_squares(floats(gradients, i), outputs_of(parameters[i]), inputs_of(parameters[i]), sums,
                          {region.index(), region.count()});
  });
  const double* sums = sums_.as<double>();
  double all = 0;
  for (const ParameterInfo& p : parameters) {
    double total = 0;
    for (uint32_t o = 0; o < outputs_of(p); o++) total += *sums++;
    if (!std::isfinite(total))  // squares of finite floats are far from double's end
      fail(Status::non_finite, "the gradient of %s is not finite (its norm is %g); nothing was changed",
           p.name.c_str(), std::sqrt(total));
    all += total;
  }
  const double norm = std::sqrt(all), limit = options_.maximum_gradient_norm;
  if ((limit > 0 ? std::fmin(norm, limit) : norm) > kLargestNorm)
    fail(Status::non_finite,
         "the gradient norm is %g: above %g its squares are not finite; nothing was changed", norm,
         kLargestNorm);
  return norm;
}

void Optimizer::update(ParameterStore& parameters, const ParameterStore& gradients, double norm,
                       double learning_rate, ThreadPool& threads) noexcept {
  step_++;
  const OptimizerOptions& o = options_;
  const bool clips = o.maximum_gradient_norm > 0 && norm > o.maximum_gradient_norm;
  AdamArgs shared{};
  shared.gradient_scale = clips ? float(o.maximum_gradient_norm / norm) : 1.0f;
  shared.beta1 = float(o.beta1), shared.one_minus_beta1 = float(1 - o.beta1);
  shared.beta2 = float(o.beta2), shared.one_minus_beta2 = float(1 - o.beta2);
  shared.step_size = float(learning_rate / (1 - power(o.beta1, step_)));
  shared.inverse_root_correction2 = float(1 / std::sqrt(1 - power(o.beta2, step_)));
  shared.epsilon = float(o.epsilon);
  const std::vector<ParameterInfo>& list = parameters.parameters();
  const TrainingKernels& kernels = *parameters.device().training;
  threads.run([&](const Region& region) {
    for (size_t i = 0; i < list.size(); i++) {
      if (!is_trained(list[i])) continue;
      AdamArgs args = shared;
      args.parameter = floats(parameters, i);
      args.gradient = floats(gradients, i);
      args.moment1 = floats(*moment1_, i), args.moment2 = floats(*moment2_, i);
      args.decay = decays(list[i]) ? float(learning_rate * o.weight_decay) : 0;
      const size_t lines = parameters.packed_bytes(i) / 64;  // of 16 floats
      kernels.adam_update(args, lines * region.index() / region.count() * 16,
                          lines * (region.index() + 1) / region.count() * 16);
    }
  });
}

void Optimizer::restore(uint64_t step, std::unique_ptr<ParameterStore> moment1,
                        std::unique_ptr<ParameterStore> moment2) noexcept {
  step_ = step;
  moment1_ = std::move(moment1);
  moment2_ = std::move(moment2);
}

}  // namespace riftco
