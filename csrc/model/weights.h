// Packed parameters of a model, filled tensor by tensor, so that loading peaks at the packed size plus one tensor.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "core/device.h"
#include "core/step_model.h"
#include "model/config.h"

namespace riftco {

// The native names of parameters, also those in .rift files:
//   embedding.token  embedding.position  final_norm.{weight,bias}  head.{weight,bias}
//   layers.N.{attention_norm,mlp_norm}.{weight,bias}  layers.N.{q,k,v,o,gate,up,down}.{weight,bias}
struct ParameterInfo {
  std::string name;
  DType type;            // matrices: as stored; vectors: f32
  uint32_t rows, columns;  // vectors: rows 1
};

// Fills rows of one parameter. Sources hand it rows in file layout (core/dtype.h), in order.
class Weights {
 public:
  // `matrix_type(name)` tells how each matrix is stored. All parameters start at zero; the importer sets every one.
  Weights(const Device& device, const ModelConfig& config, std::shared_ptr<MemoryAccount> account,
          const std::vector<ParameterInfo>& parameters);

  const Device& device() const noexcept { return device_; }
  const ModelConfig& config() const noexcept { return config_; }
  const StepModel& step_model() const noexcept { return step_model_; }
  const std::vector<ParameterInfo>& parameters() const noexcept { return parameters_; }
  const MemoryAccount& account() const noexcept { return *account_; }

  // rows [first, first + rows) of parameter `index`; vectors take floats. Refuses values that are not finite (corrupt_data).
  void set_rows(size_t index, uint32_t first, uint32_t rows, const std::byte* file_rows);

  // The same rows back, bit for bit.
  void get_rows(size_t index, uint32_t first, uint32_t rows, std::byte* file_rows) const;

 private:
  struct Slot;
  const Device& device_;
  ModelConfig config_;
  std::shared_ptr<MemoryAccount> account_;
  std::vector<ParameterInfo> parameters_;
  std::vector<Slot> slots_;
  std::vector<LayerWeights> layers_;
  std::vector<double> inverse_frequencies_;
  StepModel step_model_;
  Buffer storage_;
};

// The parameters of a config in canonical order, all matrices of one type.
std::vector<ParameterInfo> parameter_list(const ModelConfig& config, DType matrices);

}  // namespace riftco
