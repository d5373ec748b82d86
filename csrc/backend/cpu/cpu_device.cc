#include "backend/cpu/cpu_device.h"

#include "backend/cpu/isa.h"

namespace riftco {

const Device& cpu_device() {
  static const Device device = {Backend::cpu, "cpu", cpu_kernels(cpu_isa()), cpu_training_kernels(cpu_isa())};
  return device;
}

}  // namespace riftco
