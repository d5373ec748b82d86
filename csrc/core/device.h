// A device is memory and a table of kernels (and, where it wants one, its own step executor).
#pragma once
#include <cstdint>

#include "core/kernels.h"
#include "core/training_kernels.h"

namespace riftco {

enum class Backend : int32_t { cpu = 0, metal = 1, cuda = 2, tpu = 3 };

struct Device {
  Backend backend;
  const char* name;  // "cpu"
  const KernelTable* kernels;
  const TrainingKernels* training;
};

}  // namespace riftco
