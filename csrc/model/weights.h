// The parameters of a model, filled tensor by tensor, so that loading peaks at the packed size plus one piece, and the step
// model over them.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/step_model.h"
#include "model/config.h"
#include "model/parameter_store.h"

namespace riftco {

// The parameters of a valid config in canonical order, all matrices of one type, under the names that .rift files have too:
//   embedding.token  embedding.position  final_norm.{weight,bias}  head.{weight,bias}
//   layers.N.{attention_norm,mlp_norm}.{weight,bias}  layers.N.{q,k,v,o,gate,up,down}.{weight,bias}
//   layers.N.{q_norm,k_norm}.weight  rotary.factors
// A tied head has no parameter of its own.
std::vector<ParameterInfo> parameter_list(const ModelConfig& config, DType matrices);

// One of the matrices that steps multiply with; its parameter is name + ".weight".
struct LinearPlace {
  std::string name;                    // "layers.3.q", "head"
  uint32_t layer;                      // of `matrix`
  PackedMatrix LayerWeights::*matrix;  // null: the head
};

class Weights : public ParameterStore {
 public:
  // `parameters` is parameter_list's, with the types that the matrices shall have. Fails with unsupported where `compute` is
  // bf16 and no matrix that steps multiply with is.
  Weights(const Device& device, const ModelConfig& config, std::vector<ParameterInfo> parameters,
          std::shared_ptr<MemoryAccount> account, Compute compute = Compute::exact);

  const ModelConfig& config() const noexcept { return config_; }
  const StepModel& step_model() const noexcept { return step_model_; }
  const PackedMatrix& linear(const LinearPlace& place) const noexcept {
    return place.matrix ? layers_[place.layer].*place.matrix : step_model_.head;
  }

  // Sets the adapter of a linear, or null.
  void set_adapter(const LinearPlace& place, const LowRankAdapter* adapter) noexcept;
  // The largest rank of the adapters that are set.
  void set_adapter_rank(uint32_t rank) noexcept { step_model_.adapter_rank = rank; }

  // Makes f16 and bf16 matrices f32, exactly; quantised ones stay. False: there were none. What is left is computed exactly.
  // Takes the memory of both while it works; names of parameters keep their addresses, adapters are forgotten.
  bool widen(const std::shared_ptr<MemoryAccount>& account);

  void set_rows(size_t index, uint32_t first, uint32_t rows, const std::byte* file_rows) override;

 private:
  void build_step_model();
  void set_rotary_factors(std::span<const float> factors);

  ModelConfig config_;
  std::vector<LayerWeights> layers_;
  std::vector<double> inverse_frequencies_;
  StepModel step_model_;
};

}  // namespace riftco
