/* riftco: a decoder-only transformer engine behind a stable C ABI.
 *
 * Start at riftco.h. This header: status codes, errors, versions, the processor, cancelling, logging.
 *
 * Conventions of every call
 *   - Returns an rt_status (int32_t). RT_OK is 0; an unknown number is a failure. A call that fails leaves
 *     every handle as it was before the call; output handles are set to NULL.
 *   - Checks run in the order: handles, state, arguments, capacity, resources; then work.
 *   - Text and paths are UTF-8 bytes with a length, not NUL-terminated.
 *   - Structs start with struct_size: call rt_x_init(&x, sizeof x), set fields, pass by pointer. NULL
 *     options mean the defaults. A shorter struct (older program) means defaults for its missing tail; a
 *     longer one is accepted when its unknown tail is zero. Output structs: set struct_size, the call fills
 *     what both sides know and zeroes the rest.
 *   - Variable-size outputs: pointer, capacity (elements), required. NULL with capacity 0 is a size query
 *     and returns RT_OK; a buffer that is too small is RT_BUFFER_TOO_SMALL. *required is set in both cases
 *     and nothing else is.
 *   - Handles are opaque and not bound to a thread. Calls on one handle need external synchronisation,
 *     different handles do not; calls that take a const handle may run concurrently. rt_x_release(NULL)
 *     does nothing. Children keep what they need alive, so any order of release is right.
 *   - Nothing aborts, exits, or writes to stdout or stderr.
 *   - The floating-point environment of the caller is saved, set to the default and restored by every call.
 *   - In a child of fork(), inherited handles may only be released; every other use is RT_INVALID_STATE.
 */
#ifndef RIFTCO_BASE_H
#define RIFTCO_BASE_H

#include <stdint.h>

#if defined(_WIN32)
#error "riftco does not support Windows yet"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define RT_API __attribute__((visibility("default")))
#define RT_CALL

#define RT_ABI_VERSION_MAJOR 2
#define RT_ABI_VERSION_MINOR 0

typedef int32_t rt_status;

enum {
  RT_OK = 0,
  RT_INVALID_ARGUMENT = 1,
  RT_OUT_OF_RANGE = 2,
  RT_OVERFLOW = 3,
  RT_BACKEND_UNAVAILABLE = 4,
  RT_OUT_OF_MEMORY = 5,
  RT_RUNTIME_ERROR = 6,
  RT_BUFFER_TOO_SMALL = 7,
  RT_CONTEXT_FULL = 8,    /* the sequence has reached its maximum context */
  RT_CACHE_EXHAUSTED = 9, /* the pool has no free page */
  RT_INVALID_STATE = 10,  /* for instance: decode sessions are alive */
  RT_UNSUPPORTED = 11,
  RT_CORRUPT_DATA = 12,
  RT_INPUT_OUTPUT = 13,
  RT_CANCELLED = 14,
  RT_DEADLINE = 15,
  RT_BUSY = 16,
  RT_QUEUE_FULL = 17,
  RT_VERSION_MISMATCH = 18,
  RT_NON_FINITE = 19, /* logits or a cache value were not finite; the step was undone */
  RT_INTERNAL = 255
};

/* (major << 16) | minor of the library that is loaded. */
RT_API uint32_t RT_CALL rt_abi_version(void);

/* For instance "2.0.0". Static. */
RT_API const char* RT_CALL rt_version_string(void);

/* The calling thread's last failure: "[rt_decode_session_step] token 50300 is not below the vocabulary size
 * 50257"; "" after a call that succeeded. Valid until the thread's next call. Releases leave it alone. */
RT_API const char* RT_CALL rt_last_error(void);

/* "ok", "invalid argument", ...; "unknown status" for a number this library does not know. Static. */
RT_API const char* RT_CALL rt_status_name(rt_status status);

/* --- back ends and the processor ------------------------------------------------------------------------------------ */

enum { RT_BACKEND_CPU = 0, RT_BACKEND_METAL = 1, RT_BACKEND_CUDA = 2, RT_BACKEND_TPU = 3 };

/* RT_OK when models can be loaded onto it, else RT_BACKEND_UNAVAILABLE with the reason. */
RT_API rt_status RT_CALL rt_backend_check(int32_t backend);

enum { RT_CPU_ISA_SCALAR = 0, RT_CPU_ISA_AVX2 = 1, RT_CPU_ISA_AVX512 = 2, RT_CPU_ISA_NEON = 3 };

/* The instruction set of the CPU kernels. Results do not depend on it. Chosen at the first use: the best of
 * the machine, or the environment's RIFTCO_CPU_ISA=scalar|avx2|avx512|neon. */
RT_API rt_status RT_CALL rt_cpu_isa(int32_t* isa);

/* Forces it; before the first use. RT_UNSUPPORTED: not this machine; RT_INVALID_STATE: another one is already
 * in use. */
RT_API rt_status RT_CALL rt_cpu_isa_force(int32_t isa);

/* Two libraries with the same kernel contract compute the same bits on the CPU. */
RT_API uint32_t RT_CALL rt_kernel_contract(void);

/* --- texts ----------------------------------------------------------------------------------------------------------- */

typedef struct rt_text {
  const char* data; /* UTF-8 bytes */
  uint64_t size;
} rt_text;

/* --- cancelling ------------------------------------------------------------------------------------------------------ */

/* A latched flag. Calls that take one look at it between pieces of work and then fail with RT_CANCELLED,
 * everything as before the call. The caller keeps it alive while a call or handle names it. */
typedef struct rt_cancel rt_cancel;

RT_API rt_status RT_CALL rt_cancel_create(rt_cancel** cancel);
RT_API void RT_CALL rt_cancel_set(rt_cancel* cancel); /* from any thread or a signal handler */
RT_API void RT_CALL rt_cancel_reset(rt_cancel* cancel);
RT_API void RT_CALL rt_cancel_release(rt_cancel* cancel);

/* --- progress -------------------------------------------------------------------------------------------------------- */

/* Called by the thread that makes the call, at least once a MiB of the `total` bytes of its work; done never
 * falls and ends at total when the call succeeds. It may call rt_cancel_set and nothing else of the library.
 */
typedef void(RT_CALL* rt_progress_callback)(void* user_data, uint64_t done, uint64_t total);

/* --- logging --------------------------------------------------------------------------------------------------------- */

enum { RT_LOG_DEBUG = 0, RT_LOG_INFO = 1, RT_LOG_WARNING = 2 };

/* Called from any thread that is inside a call, one at a time; the message is valid during the call. It must
 * not call the library. */
typedef void(RT_CALL* rt_log_callback)(void* user_data, int32_t level, const char* message,
                                       uint64_t message_size);

/* Messages of at least `level` go to the callback; NULL (the default) silences them. Process-wide. */
RT_API rt_status RT_CALL rt_log_set_callback(rt_log_callback callback, void* user_data, int32_t level);

#ifdef __cplusplus
}
#endif

#endif /* RIFTCO_BASE_H */
