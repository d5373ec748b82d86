// Checkpoints: a safetensors file of what a trainer needs to go on, in logical order, so that it is read on any machine.
//
//   parameter.NAME, moment1.NAME, moment2.NAME   F32 [outputs, inputs] or [elements], of every trained parameter
//   riftco.checkpoint   "1.0": a newer minor is read, a newer major is refused
//   riftco.config       JSON text, the model's
//   riftco.step         updates made, a decimal number
//   riftco.state        the caller's text
//   riftco.lora.rank, riftco.lora.targets, riftco.lora.alpha, riftco.lora.base   of adapters only: numbers, and the
//                       fingerprint of the weights that they adapt
//   riftco.checksum     over the other metadata, the tensor table and the data (io/checksum.h)
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/cancel.h"
#include "model/config.h"
#include "model/parameter_store.h"

namespace riftco {

inline constexpr uint64_t kMaxStep = uint64_t(1) << 53;
inline constexpr size_t kMaxStateBytes = size_t(16) << 20;

// What a checkpoint belongs to: it is read for the same alone.
struct CheckpointOrigin {
  struct Lora {
    uint32_t rank, targets;
    double alpha;
    std::string base;
  };
  ModelConfig config;
  std::optional<Lora> lora;  // absent: all parameters of the model are trained
};

// Stores of the same parameters, all f32.
template <class Store>
struct CheckpointStores {
  Store &parameters, &moment1, &moment2;
};

// Writes `path`, whole or not at all. Fails with invalid_argument for a state that is not UTF-8 or too long.
void write_checkpoint(std::string_view path, const CheckpointOrigin& origin, uint64_t step,
                      std::string_view state, const CheckpointStores<const ParameterStore>& stores,
                      const CancelFlag* cancel);

// Checks everything, fills the stores and returns the step. Fails with corrupt_data, version_mismatch or invalid_argument
// (of another origin); then the stores hold anything.
uint64_t read_checkpoint(std::string_view path, const CheckpointOrigin& origin,
                         const CheckpointStores<ParameterStore>& stores, const CancelFlag* cancel);

// The caller's text. Reads the file's header alone.
std::string checkpoint_state(std::string_view path);

}  // namespace riftco
