#include "base/thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "base/fp_env.h"
#include "base/log.h"
#include "base/process.h"

namespace riftco {
namespace {

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

using Clock = std::chrono::steady_clock;

// A word that grows; waiters spin for a while, then park.
class Signal {
 public:
  uint32_t value() const noexcept { return value_.load(std::memory_order_acquire); }
  void advance() noexcept {
    value_.fetch_add(1);
    value_.notify_all();
  }
  // Returns how long it took where that was longer than `spin`, else 0.
  Clock::duration wait_change(uint32_t old, std::chrono::microseconds spin) const noexcept {
    constexpr int kPausesPerLook = 128;  // between looks at the clock
    const auto begin = Clock::now();
    do {
      for (int i = 0; i < kPausesPerLook; i++) {
        if (value() != old) return {};
        pause();
      }
    } while (Clock::now() < begin + spin);
    while (value() == old) value_.wait(old);
    return Clock::now() - begin;
  }

 private:
  alignas(64) std::atomic<uint32_t> value_{0};
};

// Signals are the host's: its handlers run in its own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t saved_;
};

}  // namespace

struct ThreadPool::State {
  Signal start, barrier;
  alignas(64) std::atomic<uint32_t> arrived{0};
  alignas(64) std::atomic<uint32_t> next{0};
  alignas(64) std::atomic<bool> busy{false};
  std::atomic<bool> stop{false};
  bool started = false, usable = true;  // guarded by busy
  uint32_t generation = process_generation();
  std::chrono::microseconds spin{500};
  Clock::duration waited{};  // by the caller in this region, where it had to park
  uint32_t alone_next = 0,
           alone_times = 1;  // guarded by busy: regions to run alone, and how many the next time
  Call call = nullptr;
  void* context = nullptr;
  std::vector<std::thread> workers;
};

ThreadPool::ThreadPool(uint32_t threads) : threads_(threads ? threads : usable_cpus()), state_(new State) {
  // With more workers than processors a spinning waiter takes the time of the one it waits for.
  if (threads_ > usable_cpus()) state_->spin = std::chrono::microseconds(0);
}

ThreadPool::~ThreadPool() {
  if (state_->generation != process_generation()) {
    state_.release();  // a child of fork() has no workers to join
    return;
  }
  state_->stop.store(true);
  state_->start.advance();
  for (std::thread& worker : state_->workers) worker.join();
}

void ThreadPool::run_erased(Call call, void* context) {
  State& s = *state_;
  const bool alone = threads_ == 1 || s.generation != process_generation() ||
                     s.busy.exchange(true, std::memory_order_acquire);
  if (alone) {
    call(context, Region(nullptr, 0, 1));
    return;
  }
  if (!s.started) start_workers();
  if (!s.usable || s.alone_next > 0) {
    if (s.alone_next > 0) s.alone_next--;
    s.busy.store(false, std::memory_order_release);
    call(context, Region(nullptr, 0, 1));
    return;
  }
  s.call = call;
  s.context = context;
  s.next.store(0, std::memory_order_relaxed);
  s.waited = {};
  const auto begin = Clock::now();
  s.start.advance();
  const Region region(this, 0, threads_);
  call(context, region);
  region.barrier();
  learn(Clock::now() - begin);
  s.busy.store(false, std::memory_order_release);
}

// Other programs may keep a worker from its processor, and then everybody waits for it at every barrier. Where the caller
// would have been done sooner with all of the work than with waiting, the next regions run alone, more of them each time.
void ThreadPool::learn(std::chrono::steady_clock::duration region) noexcept {
  constexpr uint32_t kMostAlone = 64;
  State& s = *state_;
  if (s.spin.count() > 0 && threads_ * (region - s.waited) < region) {
    s.alone_next = s.alone_times;
    s.alone_times = std::min(2 * s.alone_times, kMostAlone);
  } else {
    s.alone_times = std::max(s.alone_times / 2, 1u);
  }
}

void ThreadPool::start_workers() noexcept {
  State& s = *state_;
  s.started = true;
  const SignalsBlocked blocked;
  const uint32_t seen = s.start.value();
  try {
    s.workers.reserve(threads_ - 1);
    for (uint32_t index = 1; index < threads_; index++)
      s.workers.emplace_back([this, index, seen] { work(index, seen); });
  } catch (const std::exception& error) {  // no thread or no memory: the caller computes alone
    log(LogLevel::warning, "%u worker threads could not be started: %s", threads_ - 1, error.what());
    s.usable = false;
    s.stop.store(true);
    s.start.advance();
    for (std::thread& worker : s.workers) worker.join();
    s.workers.clear();
  }
}

void ThreadPool::work(uint32_t index, uint32_t seen) noexcept {
  const FpEnvGuard fp_env;  // a new thread inherits its creator's rounding mode
  State& s = *state_;
  for (;;) {
    s.start.wait_change(seen, s.spin);
    seen++;
    if (s.stop.load()) return;
    const Region region(this, index, threads_);
    s.call(s.context, region);
    region.barrier();
  }
}

void Region::barrier() const noexcept {
  if (!pool_) {
    next_ = 0;
    return;
  }
  ThreadPool::State& s = *pool_->state_;
  const uint32_t seen = s.barrier.value();
  if (s.arrived.fetch_add(1, std::memory_order_acq_rel) == count_ - 1) {
    s.arrived.store(0, std::memory_order_relaxed);
    s.next.store(0, std::memory_order_relaxed);
    s.barrier.advance();
  } else {
    const Clock::duration waited = s.barrier.wait_change(seen, s.spin);
    if (index_ == 0) s.waited += waited;
  }
}

uint32_t Region::take() const noexcept {
  return pool_ ? pool_->state_->next.fetch_add(1, std::memory_order_relaxed) : next_++;
}

}  // namespace riftco
