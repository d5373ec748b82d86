// What the forward and backward of every layer work with: kernels, threads, where gradients go, and scratch memory.
#pragma once
#include <cstdint>
#include <unordered_map>

#include "base/thread_pool.h"
#include "core/training_kernels.h"

namespace riftco {

// Outputs of a matrix worked on at a time where it is needed the other way round or as floats: whole panels of every
// instruction set.
inline constexpr uint32_t kChunkOutputs = 1536;

struct TrainingContext {
  const KernelTable& kernels;
  const TrainingKernels& training;
  ThreadPool& threads;
  const StepModel* step_model = nullptr;
  uint32_t sequences = 0, length = 0;  // of the rows worked on
  std::unordered_map<const void*, float*> gradients =
      {};  // by the packed data of a parameter; frozen ones are not there

  // Scratch, for any layer between two kernels of it.
  std::byte* operand = nullptr;            // rows of up to the widest input or kChunkOutputs
  std::byte* transposed = nullptr;         // columns of up to the widest input
  std::byte* chunk = nullptr;              // f32 panels of kChunkOutputs outputs
  std::byte* chunk_transposed = nullptr;   // the same the other way round
  std::byte* file_rows = nullptr;          // a chunk of a quantised matrix in file layout
  float *low = nullptr, *d_low = nullptr;  // [rows, rank] of adapters
  RowStatistics* statistics = nullptr;     // [rows * heads]
  std::byte* worker_scratch = nullptr;     // worker_scratch_bytes for each worker
  size_t worker_scratch_bytes = 0;

  const StepModel& model() const noexcept { return *step_model; }
  uint32_t rows() const noexcept { return sequences * length; }
  std::byte* scratch_of(uint32_t worker) const noexcept {
    return worker_scratch + worker * worker_scratch_bytes;
  }
  float* gradient_of(const void* parameter) const noexcept {
    const auto it = gradients.find(parameter);
    return it == gradients.end() ? nullptr : it->second;
  }

  // kernel(args, share) on every worker.
  template <class Kernel, class Args>
  void run(Kernel kernel, const Args& args) const {
    threads.run([&](const Region& region) { kernel(args, Share{region.index(), region.count()}); });
  }

  // kernel(args with the worker's scratch, unit) for units 0 .. count - 1, handed out as workers get free.
  template <class Kernel, class Args>
  void run_units(Kernel kernel, const Args& args, uint32_t count) const {
    threads.run([&](const Region& region) {
      Args mine = args;
      mine.scratch = scratch_of(region.index());
      for (uint32_t unit = region.take(); unit < count; unit = region.take()) kernel(mine, unit);
    });
  }
};

}  // namespace riftco
