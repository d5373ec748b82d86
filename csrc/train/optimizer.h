// AdamW (Loshchilov and Hutter 2019) over a store of parameters, with clipping by the norm of all gradients together.
#pragma once
#include <cstdint>
#include <memory>

#include "base/thread_pool.h"
#include "model/parameter_store.h"

namespace riftco {

struct OptimizerOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;        // decoupled; of matrices that are no embedding
  double maximum_gradient_norm = 1;  // 0: no clipping
};

// Fails with invalid_argument, naming field and value; `learning_rate` is the schedule's largest.
void validate(const OptimizerOptions& options, double learning_rate);

// False for what no optimizer changes (rotary.factors).
bool is_trained(const ParameterInfo& parameter) noexcept;

// Whether weights decay: not biases, norms and embeddings, a tied head being one.
bool decays(const ParameterInfo& parameter) noexcept;

// A parameter's first and second moments, and the number of updates. The numbers of an update do not depend on threads or
// instruction set.
class Optimizer {
 public:
  // Moments of zero for these parameters, which are f32. Fails with out_of_memory.
  Optimizer(const Device& device, const std::vector<ParameterInfo>& parameters,
            const OptimizerOptions& options, const std::shared_ptr<MemoryAccount>& account);

  uint64_t step() const noexcept { return step_; }  // updates made
  const ParameterStore& moment1() const noexcept { return *moment1_; }
  const ParameterStore& moment2() const noexcept { return *moment2_; }
  size_t bytes() const noexcept;

  // Of all gradients together, before clipping: squares are added in double, each output's over its inputs in order, then the
  // outputs and the parameters in order. Fails with non_finite, naming the first parameter with such a gradient, and for
  // gradients so large that their squares are not floats.
  double gradient_norm(const ParameterStore& gradients, ThreadPool& threads);

  // The next update of all parameters, in one pass. `norm` is gradient_norm of the same gradients.
  void update(ParameterStore& parameters, const ParameterStore& gradients, double norm, double learning_rate,
              ThreadPool& threads) noexcept;

  // Goes on from there; the stores are of the same parameters.
  void restore(uint64_t step, std::unique_ptr<ParameterStore> moment1,
               std::unique_ptr<ParameterStore> moment2) noexcept;

 private:
  OptimizerOptions options_;
  uint64_t step_ = 0;
  std::unique_ptr<ParameterStore> moment1_, moment2_;
  Buffer sums_;  // of squares, one for each output of each parameter
};

}  // namespace riftco
