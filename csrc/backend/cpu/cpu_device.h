// The CPU as a device.
#pragma once
#include "core/device.h"

namespace riftco {

// Chooses the instruction set at the first call (backend/cpu/isa.h); fails as cpu_isa() does.
const Device& cpu_device();

}  // namespace riftco
