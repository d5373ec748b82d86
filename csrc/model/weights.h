// Packed parameters of a model, filled tensor by tensor, so that loading peaks at the packed size plus one piece.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "core/device.h"
#include "core/step_model.h"
#include "model/config.h"

namespace riftco {

// One parameter under its native name, also the name in .rift files:
//   embedding.token  embedding.position  final_norm.{weight,bias}  head.{weight,bias}
//   layers.N.{attention_norm,mlp_norm}.{weight,bias}  layers.N.{q,k,v,o,gate,up,down}.{weight,bias}
//   layers.N.{q_norm,k_norm}.weight  rotary.factors
struct ParameterInfo {
  std::string name;
  DType type;     // matrices: as stored; vectors: f32
  uint32_t rows;  // vectors: 1
  uint32_t columns;
  bool is_vector;
};

// The parameters of a valid config in canonical order, all matrices of one type. A tied head has no parameter of its own.
std::vector<ParameterInfo> parameter_list(const ModelConfig& config, DType matrices);

class Weights {
 public:
  // `parameters` is parameter_list's, with the types that the matrices shall have. All values start at zero.
  Weights(const Device& device, const ModelConfig& config, std::vector<ParameterInfo> parameters,
          std::shared_ptr<MemoryAccount> account);
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  const Device& device() const noexcept { return device_; }
  const ModelConfig& config() const noexcept { return config_; }
  const StepModel& step_model() const noexcept { return step_model_; }
  const std::vector<ParameterInfo>& parameters() const noexcept { return parameters_; }
  size_t bytes() const noexcept { return storage_.size(); }

  // Rows [first, first + rows) of parameter `index` in file layout (core/dtype.h; vectors: floats). Each row is set once;
  // values that are not finite are refused with corrupt_data.
  void set_rows(size_t index, uint32_t first, uint32_t rows, const std::byte* file_rows);

  // The same rows back, bit for bit.
  void get_rows(size_t index, uint32_t first, uint32_t rows, std::byte* file_rows) const;

  // All of it as floats, which hold each value exactly.
  void read_floats(size_t index, float* values) const;

  // What Weights of these parameters would hold, in bytes.
  static size_t packed_bytes(const Device& device, const std::vector<ParameterInfo>& parameters);

 private:
  void build_step_model();
  void set_rotary_factors(std::span<const float> factors);

  const Device& device_;
  ModelConfig config_;
  std::vector<ParameterInfo> parameters_;
  std::vector<size_t> offsets_;  // of each parameter in storage_
  Buffer storage_;
  std::vector<LayerWeights> layers_;
  std::vector<double> inverse_frequencies_;
  StepModel step_model_;
};

}  // namespace riftco
