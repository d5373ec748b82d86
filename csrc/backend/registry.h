// Which devices this library holds; the only place that knows what was compiled in.
#pragma once
#include "core/device.h"

namespace riftco {

// The device of a back end; fails with backend_unavailable and the reason (not compiled in; library not found; no device).
// The CPU's kernel table is chosen at the first call and is then fixed for the process, see backend/cpu/isa.h.
const Device& find_device(int32_t backend);

}  // namespace riftco
