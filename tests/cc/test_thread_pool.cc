#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <thread>
#include <vector>

#include "base/fp_env.h"
#include "base/process.h"
#include "base/thread_pool.h"

namespace riftco {
namespace {

TEST(ThreadPoolThreads, EveryWorkerRunsOnceAndBarriersHold) {
  for (uint32_t threads : {1u, 2u, 3u, 5u}) {
    ThreadPool pool(threads);
    std::vector<std::atomic<int>> values(threads);
    std::atomic<int> wrong{0}, runs{0};
    pool.run([&](const Region& region) {
      ASSERT_EQ(region.count(), threads);
      runs++;
      for (int round = 1; round <= 200; round++) {
        values[region.index()] = round;
        region.barrier();
        for (const auto& v : values) wrong += v != round;
        region.barrier();
      }
    });
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(runs, int(threads));
  }
}

TEST(ThreadPoolThreads, ARunIsOverWhenAllWorkersAre) {
  for (uint32_t threads : {1u, 2u, 3u, 5u}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 200; round++) {
      std::atomic<uint32_t> runs{0}, workers{0};
      pool.run([&](const Region& region) { runs++, workers = region.count(); });
      EXPECT_EQ(runs, workers);
    }
  }
}

// A worker that is kept waiting: what it would do is done without it, and it is tried again later.
TEST(ThreadPoolThreads, AStarvedPoolComputesAloneForAWhile) {
  if (usable_cpus() < 2) GTEST_SKIP() << "one processor";
  ThreadPool pool(2);
  const auto workers = [&](bool slow) {
    uint32_t count = 0;
    pool.run([&](const Region& region) {
      if (region.index() == 0) count = region.count();
      if (region.index() == 1 && slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    });
    return count;
  };
  EXPECT_EQ(workers(true), 2u);
  EXPECT_EQ(workers(true), 1u);
  uint32_t later = 1;
  for (int i = 0; i < 200 && later == 1; i++) later = workers(false);
  EXPECT_EQ(later, 2u);
}

TEST(ThreadPoolThreads, TakeHandsOutEachNumberOnceAndBarriersResetIt) {
  for (uint32_t threads : {1u, 3u}) {
    ThreadPool pool(threads);
    constexpr uint32_t kItems = 100;
    std::vector<std::atomic<int>> taken(kItems);
    pool.run([&](const Region& region) {
      for (int round = 0; round < 3; round++) {
        for (uint32_t i = region.take(); i < kItems; i = region.take()) taken[i]++;
        region.barrier();
      }
    });
    for (const auto& count : taken) EXPECT_EQ(count, 3);
  }
}

TEST(ThreadPoolThreads, ABusyPoolComputesInline) {
  ThreadPool pool(2);
  std::atomic<bool> inside{false}, done{false};
  std::thread other([&] {
    pool.run([&](const Region& region) {
      if (region.index() != 0) return;
      inside = true;
      while (!done) std::this_thread::yield();
    });
  });
  while (!inside) std::this_thread::yield();
  uint32_t count = 0;
  pool.run([&](const Region& region) {
    count = region.count();
    region.barrier();
  });
  done = true;
  other.join();
  EXPECT_EQ(count, 1u);
}

// Computed, not asked of fegetround(): that reads the x87 word, which nothing here computes with.
bool rounds_to_nearest() {
  volatile float one = 1, little = 0x1p-30f;
  return one + little == 1 && one - little == 1;
}

TEST(ThreadPoolThreads, WorkersComputeInTheDefaultFloatingPointEnvironment) {
  const int before = std::fegetround();
  std::fesetround(FE_UPWARD);
  EXPECT_FALSE(rounds_to_nearest());
  ThreadPool pool(3);
  std::atomic<int> wrong{0};
  pool.run([&](const Region& region) {
    if (region.index() > 0) wrong += !rounds_to_nearest();
  });
  {
    const FpEnvGuard guard;
    EXPECT_TRUE(rounds_to_nearest());
  }
  EXPECT_FALSE(rounds_to_nearest());
  std::fesetround(before);
  EXPECT_EQ(wrong, 0);
}

TEST(ThreadPoolThreads, AnIdlePoolUsesNoProcessorTime) {
  ThreadPool pool(2);
  pool.run([](const Region&) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than the spin
  auto used = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return std::chrono::microseconds((usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
                                     usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  const auto before = used();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(used() - before, std::chrono::milliseconds(30));  // one spinning worker would take ten times that
}

TEST(ThreadPool, ZeroMeansTheUsableProcessors) { EXPECT_EQ(ThreadPool(0).threads(), usable_cpus()); }

// Not under ThreadSanitizer, which does not know threads after fork().
TEST(ThreadPool, AChildOfForkComputesAloneAndLeavesWithoutJoining) {
  auto pool = std::make_unique<ThreadPool>(2);
  pool->run([](const Region&) {});
  const uint32_t generation = process_generation();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    uint32_t count = 0;
    pool->run([&](const Region& region) { count = region.count(); });
    pool.reset();
    _exit(count == 1 && process_generation() == generation + 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(process_generation(), generation);
  uint32_t count = 0;
  for (int i = 0; i < 200 && count != 2; i++)  // a busy machine may have made it compute alone
    pool->run([&](const Region& region) {
      if (region.index() == 0) count = region.count();
    });
  EXPECT_EQ(count, 2u);
}

}  // namespace
}  // namespace riftco
