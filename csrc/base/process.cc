#include "base/process.h"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <atomic>
#include <thread>

#include "base/log.h"

namespace riftco {
namespace {

std::atomic<uint32_t> generation{0};

void in_child() {
  generation.fetch_add(1, std::memory_order_relaxed);
  reset_log_after_fork();
}

}  // namespace

uint32_t process_generation() noexcept {
  static const int registered = pthread_atfork(nullptr, nullptr, in_child);
  (void)registered;
  return generation.load(std::memory_order_relaxed);
}

uint32_t usable_cpus() noexcept {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    const int count = CPU_COUNT(&set);
    if (count > 0) return uint32_t(count);
  }
#endif
  const unsigned count = std::thread::hardware_concurrency();
  return count > 0 ? count : 1;
}

}  // namespace riftco
