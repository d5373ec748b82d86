#include "train/workspace.h"

#include <algorithm>

#include "base/error.h"

namespace riftco {
namespace {

constexpr uint64_t kMostLogits =
    32 << 20;  // floats of logits in memory at a time, where that is kLeastHeadRows at least
constexpr uint32_t kLeastHeadRows = 64;

// Cuts one buffer into arrays; without a buffer it only adds up their sizes.
class Cutter {
 public:
  explicit Cutter(std::byte* memory) : memory_(memory) {}
  template <class T>
  T* take(uint64_t count) {
    uint64_t bytes;
    if (__builtin_mul_overflow(count, uint64_t(sizeof(T)), &bytes) || bytes > SIZE_MAX / 2 - size_)
      fail(Status::overflow, "the activations of a batch exceed the address space");
    T* p = memory_ ? reinterpret_cast<T*>(memory_ + size_) : nullptr;
    size_ += (size_t(bytes) + 63) / 64 * 64;
    return p;
  }
  size_t size() const noexcept { return size_; }

 private:
  std::byte* memory_;
  size_t size_ = 0;
};

uint32_t widest_input(const StepModel& m) { return std::max({m.width, m.mlp_width, m.heads * m.head_width}); }

bool has_narrow(const StepModel& m) {  // matrices that are not f32
  bool any = m.head.type != DType::f32;
  for (const LayerWeights& l : m.layers)
    for (const PackedMatrix* matrix : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
      any = any || matrix->type != DType::f32;
  return any;
}

class Planner {
 public:
  Planner(Cutter& cutter, const WorkspaceShape& shape, TrainingContext& context, TrainingWorkspace& workspace)
      : cut_(cutter), shape_(shape), c_(context), m_(context.model()), w_(workspace) {
    rows_ = uint64_t(shape.sequences) * shape.length;
  }

  void plan() {
    plan_blocks();
    if (shape_.gradients) plan_gradients();
    w_.scratch.normal = floats(m_.width);
    w_.cos_sin = cut_.take<float>(uint64_t(shape_.length) * 2 * m_.inverse_frequencies.size());
    w_.head_rows =
        uint32_t(std::min<uint64_t>(rows_, std::max<uint64_t>(kLeastHeadRows, kMostLogits / m_.vocabulary)));
    w_.logits = cut_.take<float>(uint64_t(w_.head_rows) * m_.vocabulary);
    w_.losses = floats(1);
    w_.positions = cut_.take<uint32_t>(rows_);
    plan_context();
  }

 private:
  float* floats(uint64_t width) { return cut_.take<float>(rows_ * width); }

  BlockActivations inside() {
    const uint64_t q = uint64_t(m_.heads) * m_.head_width, kv = uint64_t(m_.kv_heads) * m_.head_width;
    const bool normed = m_.layers[0].q_norm != nullptr;
    BlockActivations b = {};
    b.attention = {normed ? floats(q) : nullptr,
                   normed ? floats(kv) : nullptr,
                   floats(q),
                   floats(kv),
                   floats(kv),
                   floats(q),
                   cut_.take<SoftmaxStatistics>(rows_ * m_.heads),
                   shape_.materialized ? cut_.take<float>(rows_ * m_.heads * shape_.length) : nullptr};
    b.middle = floats(m_.width);
    b.gate = m_.layers[0].gate ? floats(m_.mlp_width) : nullptr;
    b.up = floats(m_.mlp_width);
    return b;
  }

  void plan_blocks() {
    w_.blocks.clear();
    BlockActivations shared = shape_.keep_all ? BlockActivations{} : inside();
    float* turns[2] = {};  // where no x is kept
    if (!shape_.gradients)
      for (float*& x : turns) x = floats(m_.width);
    for (size_t l = 0; l < m_.layers.size(); l++) {
      BlockActivations b = shape_.keep_all ? inside() : shared;
      b.x = shape_.gradients ? floats(m_.width) : turns[l % 2];
      w_.blocks.push_back(b);
    }
    w_.last = shape_.gradients ? floats(m_.width) : turns[m_.layers.size() % 2];
  }

  void plan_gradients() {
    const uint64_t q = uint64_t(m_.heads) * m_.head_width, kv = uint64_t(m_.kv_heads) * m_.head_width;
    w_.dx = floats(m_.width);
    w_.scratch = {.normal = nullptr,
                  .d_normal = floats(m_.width),
                  .d_context = floats(q),
                  .d_attention = {floats(q), floats(kv), floats(kv)},
                  .y = floats(m_.mlp_width),
                  .d_up = floats(m_.mlp_width),
                  .d_gate = m_.layers[0].gate ? floats(m_.mlp_width) : nullptr};
  }

  void plan_context() {
    const uint32_t widest = widest_input(m_), rank = m_.adapter_rank;
    const uint32_t rows = uint32_t(rows_);
    const auto bytes = [&](size_t count) { return cut_.take<std::byte>(count); };
    c_.operand =
        bytes(c_.kernels.operand_bytes(rows, std::max({widest, kChunkOutputs, rank}), kOperandFloat));
    c_.transposed = bytes(c_.kernels.operand_bytes(std::max(widest, rank), rows, kOperandFloat));
    if (has_narrow(m_)) {
      c_.chunk = bytes(c_.kernels.packed_bytes(DType::f32, kChunkOutputs, widest));
      c_.file_rows = bytes(size_t(c_.threads.threads()) * widest * sizeof(float));
    }
    if (shape_.gradients)
      c_.chunk_transposed = bytes(c_.kernels.packed_bytes(DType::f32, std::max(widest, rank), kChunkOutputs));
    c_.low = floats(rank);
    c_.d_low = shape_.gradients ? floats(rank) : nullptr;
    c_.statistics = cut_.take<RowStatistics>(rows_ * m_.heads);
    const size_t of_worker = std::max({c_.training.attention_scratch_bytes(shape_.length, m_.head_width),
                                       c_.training.outer_scratch_bytes(), widest * sizeof(float)});
    c_.worker_scratch_bytes = (of_worker + 63) / 64 * 64;
    c_.worker_scratch = bytes(c_.threads.threads() * c_.worker_scratch_bytes);
  }

  Cutter& cut_;
  const WorkspaceShape& shape_;
  TrainingContext& c_;
  const StepModel& m_;
  TrainingWorkspace& w_;
  uint64_t rows_;
};

}  // namespace

TrainingWorkspace::TrainingWorkspace(const WorkspaceShape& wanted, TrainingContext& context,
                                     std::shared_ptr<MemoryAccount> account)
    : shape(wanted) {
  Cutter measure(nullptr);
  Planner(measure, shape, context, *this).plan();
  memory_ = Buffer(std::move(account), measure.size(), "the activations of training", Pages::huge);
  Cutter cut(memory_.data());
  Planner(cut, shape, context, *this).plan();
}

}  // namespace riftco
