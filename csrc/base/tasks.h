// Independent pieces of work on a pool's workers, with errors and progress for the caller.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

#include "base/thread_pool.h"

namespace riftco {

// Runs task(i, worker) for i < count, begun in this order; worker is below pool.threads(). The caller's thread alone runs
// done(n) for each number of tasks that are done, from 1 to count, in between and at the end. When either throws, no other task
// begins, and what the first task in order threw, else what done() threw, is thrown.
template <class Task, class Done>
void run_tasks(ThreadPool& pool, uint32_t count, const Task& task, const Done& done) {
  std::atomic<uint32_t> finished{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;  // guards the failure
  std::exception_ptr failure;
  uint32_t failed = UINT32_MAX;
  const auto guarded = [&](uint32_t order, const auto& work) {
    try {
      work();
    } catch (...) {
      stop.store(true);
      const std::lock_guard lock(mutex);
      if (failure && failed <= order) return;
      failure = std::current_exception();
      failed = order;
    }
  };
  uint32_t told = 0;
  const auto tell = [&] {
    while (told < finished.load()) done(++told);
  };
  pool.run([&](const Region& region) {
    for (uint32_t i; !stop.load() && (i = region.take()) < count;) {
      guarded(i, [&] {
        task(i, region.index());
        finished.fetch_add(1);
      });
      if (region.index() == 0 && !stop.load()) guarded(count, tell);
    }
  });
  if (failure) std::rethrow_exception(failure);
  tell();
}

}  // namespace riftco
