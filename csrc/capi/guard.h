// What every call of the C ABI goes through: the one try/catch, the thread's last error, and handles.
#pragma once
#include <pthread.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/fp_env.h"
#include "base/process.h"
#include "riftco/base.h"

namespace riftco::capi {

// Stores "[function] message" as the calling thread's last error and returns the status.
rt_status set_last_error(const char* function, Status status, const char* message) noexcept;
void clear_last_error() noexcept;

// A call's surroundings: the default floating-point environment, and no cancellation of the host's thread
// inside the library (it stays pending until the call has returned).
class CallScope {
 public:
  CallScope() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state_); }
  ~CallScope() {
    int ignored;
    pthread_setcancelstate(cancel_state_, &ignored);
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  int cancel_state_ = 0;
  FpEnvGuard environment_;
};

inline rt_status run_guarded(const char* function, void (*call)(void*), void* context) noexcept {
  const CallScope scope;
  try {
    call(context);
    clear_last_error();
    return RT_OK;
  } catch (const Error& error) {
    return set_last_error(function, error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return set_last_error(function, Status::out_of_memory, "out of memory");
  } catch (const std::exception& error) {
    return set_last_error(function, Status::internal, error.what());
  } catch (...) {
    return set_last_error(function, Status::internal, "unknown exception");
  }
}

// Runs f() and turns what it throws into a status and the thread's last error.
template <class F>
rt_status guarded(const char* function, F&& f) noexcept {
  return run_guarded(
      function, [](void* context) { (*static_cast<F*>(context))(); }, &f);
}

// The same for calls that make a handle: f() returns a std::unique_ptr of it. *out is NULL unless the call
// succeeds.
template <class H, class F>
rt_status guarded_create(const char* function, const char* name, H** out, F&& f) noexcept {
  if (out) *out = nullptr;
  return guarded(function, [&] {
    if (!out) fail(Status::invalid_argument, "%s is NULL", name);
    *out = f().release();
  });
}

// The base of a handle type H, whose H::kKind is its name. Knows a live handle of its type from NULL and, as
// far as the memory still tells, from another type's or a released one.
template <class H>
class Handle {
 public:
  Handle() noexcept : kind_(H::kKind), generation_(process_generation()) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { *const_cast<const char* volatile*>(&kind_) = nullptr; }

  bool is_live() const noexcept { return kind_ == H::kKind; }
  bool is_inherited() const noexcept { return generation_ != process_generation(); }

 private:
  const char* kind_;
  uint32_t generation_;  // of the process that made it
};

// The handle of argument `name`, checked. H may be const.
template <class H>
H& checked(H* handle, const char* name) {
  if (!handle) fail(Status::invalid_argument, "%s is NULL", name);
  if (reinterpret_cast<uintptr_t>(handle) % alignof(H) != 0 || !handle->is_live())
    fail(Status::invalid_argument, "%s is not a live %s handle", name, H::kKind);
  if (handle->is_inherited())
    fail(Status::invalid_state, "%s was made before fork(); in the child it may only be released", name);
  return *handle;
}

// An inherited handle leaks in the child: its destructor could wait for locks and threads that exist in the
// parent only.
template <class H>
void release(H* handle) noexcept {
  if (!handle || !handle->is_live() || handle->is_inherited()) return;
  const CallScope scope;
  delete handle;
}

}  // namespace riftco::capi
