// A latched flag that another thread or a signal handler may set; long work looks at it between pieces.
#pragma once
#include <atomic>

#include "base/error.h"

namespace riftco {

class CancelFlag {
 public:
  void set() noexcept { flag_.store(true, std::memory_order_relaxed); }
  void reset() noexcept { flag_.store(false, std::memory_order_relaxed); }
  bool is_set() const noexcept { return flag_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> flag_{false};
  static_assert(std::atomic<bool>::is_always_lock_free, "set() is called from signal handlers");
};

// Fails with `cancelled` when a flag is given and set.
inline void check_cancel(const CancelFlag* cancel, const char* what) {
  if (cancel && cancel->is_set()) fail(Status::cancelled, "%s was cancelled", what);
}

}  // namespace riftco
