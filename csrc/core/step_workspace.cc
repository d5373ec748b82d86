#include "core/step_workspace.h"

#include <algorithm>

#include "base/error.h"

namespace riftco {
namespace {

// Lays arrays out one after another: once to learn the size, once with the memory.
class Layout {
 public:
  explicit Layout(std::byte* base) : base_(base) {}
  template <class T>
  void place(T*& pointer, size_t count) {
    constexpr size_t kLine = 64;
    pointer = base_ ? reinterpret_cast<T*>(base_ + size_) : nullptr;
    size_t bytes;
    if (__builtin_mul_overflow(count, sizeof(T), &bytes) ||
        __builtin_add_overflow(size_, bytes + kLine, &size_))
      fail(Status::overflow, "the activation memory of a step exceeds the address space");
    size_ = size_ / kLine * kLine;
  }
  size_t size() const noexcept { return size_; }

 private:
  std::byte* base_;
  size_t size_ = 0;
};

}  // namespace

StepArena::StepArena(const Device& device, const StepModel& m, uint32_t context_tokens, uint32_t rank,
                     uint32_t workers, std::shared_ptr<MemoryAccount> account)
    : longest_context(context_tokens), adapter_rank(rank) {
  const KernelTable& kernels = *device.kernels;
  constexpr size_t rows = kMaxBlockRows;
  const uint32_t kinds = kOperandFloat | kOperandInt8 | operand_kind(DType::bf16, m.compute);
  const size_t head_inputs = size_t(m.heads) * m.head_width, kv_outputs = size_t(m.kv_heads) * m.head_width;
  const uint32_t widest = std::max({m.width, m.mlp_width, uint32_t(head_inputs)});
  // int8 forms exist for whole blocks only; the bound for a rounded width holds for the plain one
  const uint32_t bound = (widest + 31) / 32 * 32;
  const size_t segments = (size_t(context_tokens) + kKeySegment - 1) / kKeySegment;
  constexpr size_t kSplitRows = 4;  // rows whose segments may be shared out at the longest context
  partial_slots = kSplitRows * m.heads * segments;
  private_operand_bytes = kernels.operand_bytes(1, bound, kinds);
  scratch_bytes = (kernels.attention_scratch_bytes(m.heads / m.kv_heads, m.head_width) + 63) / 64 * 64;
  auto lay_out = [&](std::byte* base) {
    Layout layout(base);
    layout.place(x, rows * m.width);
    layout.place(q, rows * head_inputs);
    layout.place(k, rows * kv_outputs);
    layout.place(v, rows * kv_outputs);
    layout.place(context, rows * head_inputs);
    layout.place(gate, m.activation == Activation::silu_gated ? rows * m.mlp_width : 0);
    layout.place(up, rows * m.mlp_width);
    layout.place(cos_sin, rows * 2 * m.inverse_frequencies.size());
    layout.place(operand, kernels.operand_bytes(rows, bound, kinds));
    layout.place(private_operands, workers * private_operand_bytes);
    for (float*& rows_of_one : adapted) layout.place(rows_of_one, rows * rank);
    for (std::byte*& packed : adapter_operand)
      layout.place(packed, kernels.operand_bytes(rows, rank, kOperandFloat));
    layout.place(partials, partial_slots * kernels.attention_slot_floats(m.head_width));
    layout.place(scratch, workers * scratch_bytes);
    layout.place(tokens, rows);
    layout.place(positions, rows);
    layout.place(wanted_rows, rows);
    layout.place(hidden_rows, rows);
    layout.place(attention_rows, rows);
    layout.place(logits, rows);
    layout.place(hidden, rows);
    return layout.size();
  };
  memory_ = Buffer(std::move(account), lay_out(nullptr), "the activations of a step");
  lay_out(memory_.data());
  const size_t whole_units = rows * m.kv_heads;
  units.reserve(std::max(whole_units, partial_slots));
  merges.reserve(whole_units);
}

void StepWorkspace::reserve(const StepModel& model, uint32_t longest_context, uint32_t workers) {
  {
    std::lock_guard lock(mutex_);
    const bool ready =
        arenas_ > 0 && longest_context <= longest_context_ && model.adapter_rank <= adapter_rank_;
    longest_context_ = std::max(longest_context_, longest_context);
    if (ready) return;
  }
  borrow(model, workers);
}

StepWorkspace::Lease StepWorkspace::borrow(const StepModel& model, uint32_t workers) {
  std::unique_ptr<StepArena> arena;
  uint32_t context, rank;
  {
    std::lock_guard lock(mutex_);
    context = longest_context_;
    rank = adapter_rank_ = std::max(adapter_rank_, model.adapter_rank);
    if (free_.empty()) {
      free_.reserve(arenas_ + 1);  // so that giving back cannot fail
      arenas_++;
    } else {
      arena = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!arena || arena->longest_context < context || arena->adapter_rank < rank) {
    try {
      arena = std::make_unique<StepArena>(device_, model, context, rank, workers, account_);
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (arena) {
        free_.push_back(std::move(arena));
      } else {
        arenas_--;
      }
      throw;
    }
  }
  return Lease(*this, std::move(arena));
}

void StepWorkspace::give_back(std::unique_ptr<StepArena> arena) noexcept {
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(arena));
}

}  // namespace riftco
