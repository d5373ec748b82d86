// Where a model computes.
#pragma once
#include <cstdint>

#include "riftco_transformer/core/error.hpp"

namespace riftco_transformer {

enum class ExecutionBackend : std::int32_t {
  Cpu = RT_BACKEND_CPU,
  Metal = RT_BACKEND_METAL,
  Cuda = RT_BACKEND_CUDA,
  Tpu = RT_BACKEND_TPU
};

// Throws RT_BACKEND_UNAVAILABLE with the reason when models cannot be loaded onto it.
inline void require_backend(ExecutionBackend backend) {
  detail::check(rt_backend_check(static_cast<std::int32_t>(backend)));
}

}  // namespace riftco_transformer
