#include "backend/registry.h"

#include "backend/cpu/cpu_device.h"
#include "base/error.h"

namespace riftco {

const Device& find_device(int32_t backend) {
  switch (Backend(backend)) {
    case Backend::cpu:
      return cpu_device();
    case Backend::metal:
      fail(Status::backend_unavailable, "back end metal is not compiled in");
    case Backend::cuda:
      fail(Status::backend_unavailable, "back end cuda is not compiled in");
    case Backend::tpu:
      fail(Status::backend_unavailable, "back end tpu is not compiled in");
  }
  fail(Status::invalid_argument, "back end %d is unknown", int(backend));
}

}  // namespace riftco
