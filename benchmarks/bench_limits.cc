// What this machine can do: bench_limits [THREADS] prints one JSON document, in about 0.3 s.
//
//   read_gb_per_second    reading 256 MiB of huge pages, all threads
//   f32_gflop_per_second, int8_gop_per_second   the peaks of peaks.h
//   round_trip_ns         of a cache line between the first two processors: below 50 they are likely two threads of one core,
//                         below 150 they share a cache, above they do not. Null with one processor.
//#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/memory.h"
#include "peaks.h"

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of work(0) .. work(threads - 1), each on its own thread, from a common start; the least of a few.
double seconds(unsigned threads, const std::function<void(unsigned)>& work) {
  double best = 1e9;
  for (int repeat = 0; repeat < 4; repeat++) {
    std::atomic<unsigned> ready{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> others;
    for (unsigned i = 1; i < threads; i++)
      others.emplace_back([&, i] {
        ready++;
        while (!go) {
        }
        work(i);
      });
    while (ready + 1 < threads) {
    }
    const double start = now();
    go = true;
    work(0);
    for (std::thread& t : others) t.join();
    best = std::min(best, now() - start);
  }
  return best;
}

double read_gb_per_second(unsigned threads) {
  const size_t bytes = size_t(256) << 20, words = bytes / 8;
  riftco::Buffer memory(std::make_shared<riftco::MemoryAccount>(), bytes, "reading", riftco::Pages::huge);
  uint64_t* data = reinterpret_cast<uint64_t*>(memory.data());
  for (size_t i = 0; i < words; i++) data[i] = i;
  std::atomic<uint64_t> sink{0};
  const double best = seconds(threads, [&](unsigned index) {
    const size_t begin = words * index / threads, end = words * (index + 1) / threads;
    uint64_t lanes[16] = {};
    for (size_t i = begin; i + 16 <= end; i += 16)
      for (size_t j = 0; j < 16; j++) lanes[j] |= data[i + j];
    for (uint64_t lane : lanes) sink |= lane;
  });
  return double(bytes) / best / 1e9;
}

// 0: there is only one processor, or threads cannot be bound.
double round_trip_ns() {
#ifdef __linux__
  cpu_set_t all;
  if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2) return 0;
  int processors[2], found = 0;
  for (int i = 0; i < CPU_SETSIZE && found < 2; i++)
    if (CPU_ISSET(i, &all)) processors[found++] = i;
  const auto bind = [](int processor) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    sched_setaffinity(0, sizeof one, &one);
  };
  constexpr unsigned kTrips = 20000;
  std::atomic<unsigned> turn{0};
  std::thread other([&] {
    bind(processors[1]);
    for (unsigned i = 0; i < kTrips; i++) {
      while (turn.load(std::memory_order_acquire) != 2 * i + 1) {
      }
      turn.store(2 * i + 2, std::memory_order_release);
    }
  });
  double elapsed = 0;
  std::thread first([&] {
    bind(processors[0]);
    const double start = now();
    for (unsigned i = 0; i < kTrips; i++) {
      turn.store(2 * i + 1, std::memory_order_release);
      while (turn.load(std::memory_order_acquire) != 2 * i + 2) {
      }
    }
    elapsed = now() - start;
  });
  first.join();
  other.join();
  return elapsed / kTrips * 1e9;
#else
  return 0;
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const int wanted = argc > 1 ? std::atoi(argv[1]) : int(std::thread::hardware_concurrency());
  const unsigned threads = wanted > 0 ? unsigned(wanted) : 1;
  std::printf("{\"threads\": %u, \"read_gb_per_second\": %.2f", threads, read_gb_per_second(threads));
  constexpr uint64_t kRepetitions = 1000000;
  for (const auto& [name, peak] :
       {std::pair{"f32_gflop_per_second", f32_peak()}, {"int8_gop_per_second", int8_peak()}}) {
    if (!peak.run) continue;
    const double best = seconds(threads, [&peak = peak](unsigned) { peak.run(kRepetitions); });
    std::printf(", \"%s\": %.1f", name, peak.operations * double(kRepetitions) * threads / best / 1e9);
  }
  const double trip = round_trip_ns();
  if (trip > 0)
    std::printf(", \"round_trip_ns\": %.0f}\n", trip);
  else
    std::printf(", \"round_trip_ns\": null}\n");
}
