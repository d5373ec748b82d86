// The device seam: one step of a model over a batch of rows. The default executor walks the layers over the kernel table.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "base/cancel.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "core/device.h"
#include "core/step_model.h"

namespace riftco {

// One token of one sequence. Rows of a sequence are consecutive in the batch, with consecutive positions.
struct StepRow {
  uint32_t token;
  uint32_t position;
  uint32_t view;            // index into StepBatch::views
  float* logits = nullptr;  // [vocabulary] of the next token, or null where they are not wanted
  float* hidden = nullptr;  // [width] after the final norm, or null
};

struct StepBatch {
  std::span<const StepRow> rows;
  std::span<const CacheView> views;
  std::span<const CancelFlag* const> cancel = {};  // any of them cancels the step; none is null
};

class StepWorkspace;

class StepExecutor {
 public:
  StepExecutor(const Device& device, std::shared_ptr<ThreadPool> threads,
               std::shared_ptr<MemoryAccount> account);
  virtual ~StepExecutor();

  // Makes sure that activation memory exists for steps over this model with contexts up to longest_context tokens.
  virtual void reserve(const StepModel& model, uint32_t longest_context);

  // Writes keys and values of all rows into the views' pages, logits and hidden states where wanted. Complete on return.
  // Fails with cancelled or non_finite; then pages and outputs of these rows hold anything, everything else is as before.
  virtual void run(const StepModel& model, const StepBatch& batch);

  ThreadPool& threads() noexcept { return *threads_; }

 private:
  const Device& device_;
  std::shared_ptr<ThreadPool> threads_;
  std::unique_ptr<StepWorkspace> workspace_;
};

}  // namespace riftco
