#include "riftco/base.h"

#include "backend/cpu/isa.h"
#include "backend/registry.h"
#include "base/log.h"
#include "capi/arguments.h"
#include "capi/handles.h"

using namespace riftco;
using namespace riftco::capi;

static_assert(RT_INTERNAL == int32_t(Status::internal) && RT_NON_FINITE == int32_t(Status::non_finite));
static_assert(RT_BACKEND_TPU == int32_t(Backend::tpu) && RT_CPU_ISA_NEON == int32_t(CpuIsa::neon));
static_assert(RT_LOG_WARNING == int32_t(LogLevel::warning));

uint32_t rt_abi_version(void) { return RT_ABI_VERSION_MAJOR << 16 | RT_ABI_VERSION_MINOR; }

const char* rt_version_string(void) { return "2.0.0"; }

const char* rt_status_name(rt_status status) {
  switch (status) {
    case RT_OK:
      return "ok";
    case RT_INVALID_ARGUMENT:
      return "invalid argument";
    case RT_OUT_OF_RANGE:
      return "out of range";
    case RT_OVERFLOW:
      return "overflow";
    case RT_BACKEND_UNAVAILABLE:
      return "backend unavailable";
    case RT_OUT_OF_MEMORY:
      return "out of memory";
    case RT_RUNTIME_ERROR:
      return "runtime error";
    case RT_BUFFER_TOO_SMALL:
      return "buffer too small";
    case RT_CONTEXT_FULL:
      return "context full";
    case RT_CACHE_EXHAUSTED:
      return "cache exhausted";
    case RT_INVALID_STATE:
      return "invalid state";
    case RT_UNSUPPORTED:
      return "unsupported";
    case RT_CORRUPT_DATA:
      return "corrupt data";
    case RT_INPUT_OUTPUT:
      return "input/output";
    case RT_CANCELLED:
      return "cancelled";
    case RT_DEADLINE:
      return "deadline";
    case RT_BUSY:
      return "busy";
    case RT_QUEUE_FULL:
      return "queue full";
    case RT_VERSION_MISMATCH:
      return "version mismatch";
    case RT_NON_FINITE:
      return "non-finite";
    case RT_INTERNAL:
      return "internal";
    default:
      return "unknown status";
  }
}

rt_status rt_backend_check(int32_t backend) {
  return guarded(__func__, [&] { find_device(backend); });
}

rt_status rt_cpu_isa(int32_t* isa) {
  return guarded(__func__, [&] { output_argument(isa, "isa") = int32_t(cpu_isa()); });
}

rt_status rt_cpu_isa_force(int32_t isa) {
  return guarded(__func__, [&] { force_cpu_isa(choice_argument<CpuIsa>(isa, RT_CPU_ISA_NEON, "isa")); });
}

uint32_t rt_kernel_contract(void) { return kKernelContract; }

rt_status rt_cancel_create(rt_cancel** cancel) {
  return guarded_create(__func__, "cancel", cancel, [] { return std::make_unique<rt_cancel>(); });
}

void rt_cancel_set(rt_cancel* cancel) {
  if (cancel && cancel->is_live()) cancel->flag.set();
}

void rt_cancel_reset(rt_cancel* cancel) {
  if (cancel && cancel->is_live()) cancel->flag.reset();
}

void rt_cancel_release(rt_cancel* cancel) { release(cancel); }

rt_status rt_log_set_callback(rt_log_callback callback, void* user_data, int32_t level) {
  return guarded(__func__, [&] {
    set_log_callback(callback, user_data, choice_argument<LogLevel>(level, RT_LOG_WARNING, "level"));
  });
}
