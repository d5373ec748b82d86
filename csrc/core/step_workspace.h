// Activation memory of running steps.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "base/memory.h"
#include "core/device.h"
#include "core/step_model.h"

namespace riftco {

// The memory of one running step: a block of kMaxBlockRows rows of one model.
struct StepArena {
  struct Merge {
    uint32_t first_unit, segments;
  };

  // For contexts up to `context` tokens and adapters of ranks up to `rank`.
  StepArena(const Device& device, const StepModel& model, uint32_t context, uint32_t rank, uint32_t workers,
            std::shared_ptr<MemoryAccount> account);

  std::byte* private_operand(uint32_t worker) const noexcept {
    return private_operands + worker * private_operand_bytes;
  }
  std::byte* attention_scratch(uint32_t worker) const noexcept { return scratch + worker * scratch_bytes; }

  uint32_t longest_context, adapter_rank;
  float *x, *q, *k, *v, *context, *gate, *up, *cos_sin;  // [kMaxBlockRows, ...]
  std::byte* operand;                                    // the rows that a linear reads
  std::byte* private_operands;                           // one row for each worker
  size_t private_operand_bytes;
  float* adapted[kLinearMatrices];  // [kMaxBlockRows, adapter_rank]: a x of the matrices of a linear
  std::byte* adapter_operand[kLinearMatrices];  // these as operands
  float* partials;
  size_t partial_slots;
  std::byte* scratch;
  size_t scratch_bytes;
  uint32_t *tokens, *positions, *wanted_rows, *hidden_rows;  // [kMaxBlockRows]
  AttentionRow* attention_rows;                              // [kMaxBlockRows]
  float **logits, **hidden;          // [kMaxBlockRows]: where the outputs of these rows go
  std::vector<AttentionUnit> units;  // capacity reserved for every plan
  std::vector<Merge> merges;

 private:
  Buffer memory_;
};

// A step borrows one arena; the first time that n steps run at once the n-th is made, so that steps in steady state
// allocate nothing. Thread-safe.
class StepWorkspace {
 public:
  StepWorkspace(const Device& device, std::shared_ptr<MemoryAccount> account)
      : device_(device), account_(std::move(account)) {}

  // Makes sure that there is an arena, and that all are large enough for this context and the model's adapters from their
  // next use on.
  void reserve(const StepModel& model, uint32_t longest_context, uint32_t workers);

  // Gives its arena back at the end of its scope.
  class Lease {
   public:
    Lease(StepWorkspace& workspace, std::unique_ptr<StepArena> arena)
        : workspace_(workspace), arena_(std::move(arena)) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() { workspace_.give_back(std::move(arena_)); }
    StepArena& operator*() const noexcept { return *arena_; }

   private:
    StepWorkspace& workspace_;
    std::unique_ptr<StepArena> arena_;
  };
  Lease borrow(const StepModel& model, uint32_t workers);

 private:
  void give_back(std::unique_ptr<StepArena> arena) noexcept;

  const Device& device_;
  std::shared_ptr<MemoryAccount> account_;
  std::mutex mutex_;
  uint32_t longest_context_ = 1;                  // guarded by mutex_
  uint32_t adapter_rank_ = 0;                     // the largest so far; guarded by mutex_
  size_t arenas_ = 0;                             // in being, lent ones included; guarded by mutex_
  std::vector<std::unique_ptr<StepArena>> free_;  // capacity for all of them; guarded by mutex_
};

}  // namespace riftco
