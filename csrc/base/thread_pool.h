// A pool for SPMD regions: every worker runs the same function, with barriers inside. Waiters spin about 0.5 ms, then park.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>

namespace riftco {

class ThreadPool;

// One worker's place in a running region.
class Region {
 public:
  uint32_t index() const noexcept { return index_; }
  uint32_t count() const noexcept { return count_; }

  // Returns when all workers of the region have arrived; their writes before it are visible after it. Resets take().
  void barrier() const noexcept;

  // The next number (0, 1, ...) of the shared counter, for dynamic hand-out between two barriers.
  uint32_t take() const noexcept;

 private:
  friend class ThreadPool;
  Region(ThreadPool* pool, uint32_t index, uint32_t count) : pool_(pool), index_(index), count_(count) {}
  ThreadPool* pool_;  // null: the caller alone
  uint32_t index_, count_;
  mutable uint32_t next_ = 0;  // take() of a region of one
};

class ThreadPool {
 public:
  // `threads` workers, the caller included; 0: the CPUs that the process may use. Workers start at the first run.
  explicit ThreadPool(uint32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t threads() const noexcept { return threads_; }

  // Runs f(region) on all workers; returns when all are done. f must not throw. A busy pool, one whose workers could not be
  // started, one inherited over fork(), or one that learned that its workers get too little of a busy machine means that the
  // caller computes inline, alone.
  template <class F>
  void run(F&& f) {
    run_erased([](void* context, const Region& region) { (*static_cast<F*>(context))(region); }, &f);
  }

 private:
  friend class Region;
  struct State;
  using Call = void (*)(void* context, const Region& region);
  void run_erased(Call call, void* context);
  void learn(std::chrono::steady_clock::duration region) noexcept;
  void start_workers() noexcept;
  void work(uint32_t index, uint32_t seen) noexcept;

  uint32_t threads_;
  std::unique_ptr<State> state_;
};

}  // namespace riftco
