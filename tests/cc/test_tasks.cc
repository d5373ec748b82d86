#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/tasks.h"

namespace riftco {
namespace {

TEST(TasksThreads, EachRunsOnceAndTheCallerHearsOfAll) {
  for (uint32_t threads : {1u, 2u, 4u}) {
    ThreadPool pool(threads);
    const auto caller = std::this_thread::get_id();
    for (uint32_t count : {0u, 1u, 3u, 500u}) {
      std::vector<std::atomic<int>> runs(count);
      std::atomic<int> wrong{0};
      std::vector<uint32_t> told;
      run_tasks(
          pool, count,
          [&](uint32_t i, uint32_t worker) {
            runs[i]++;
            wrong += worker >= threads || (worker == 0) != (std::this_thread::get_id() == caller);
          },
          [&](uint32_t done) {
            wrong += std::this_thread::get_id() != caller;
            told.push_back(done);
          });
      for (const auto& n : runs) EXPECT_EQ(n, 1);
      EXPECT_EQ(wrong, 0);
      ASSERT_EQ(told.size(), count);
      for (uint32_t i = 0; i < count; i++) EXPECT_EQ(told[i], i + 1);
    }
  }
}

// What run_tasks throws where some tasks, or the word that one is done, throw.
std::string thrown(ThreadPool& pool, std::vector<uint32_t> tasks, uint32_t done,
                   std::atomic<uint32_t>& begun) {
  try {
    run_tasks(
        pool, 1000,
        [&](uint32_t i, uint32_t) {
          begun++;
          if (std::find(tasks.begin(), tasks.end(), i) != tasks.end())
            throw std::runtime_error("task " + std::to_string(i));
        },
        [&](uint32_t n) {
          if (n == done) throw std::runtime_error("done " + std::to_string(n));
        });
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing";
}

TEST(TasksThreads, TheFirstErrorInOrderEndsThem) {
  for (uint32_t threads : {1u, 2u, 4u}) {
    ThreadPool pool(threads);
    for (int turn = 0; turn < 50; turn++) {
      std::atomic<uint32_t> begun{0};
      EXPECT_EQ(thrown(pool, {7, 8, 9, 10, 11}, 0, begun), "task 7");
      EXPECT_LE(begun, 8 + threads - 1);
      EXPECT_EQ(thrown(pool, {}, 1000, begun), "done 1000");
    }
  }
  ThreadPool alone(1);
  std::atomic<uint32_t> begun{0};
  EXPECT_EQ(thrown(alone, {5}, 2, begun), "done 2");
  EXPECT_EQ(begun, 2u);
}

}  // namespace
}  // namespace riftco
