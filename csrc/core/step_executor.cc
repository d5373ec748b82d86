#include "core/step_executor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "core/step_workspace.h"

namespace riftco {
namespace {

// One block of at most kMaxBlockRows rows through all layers, run by every worker of a region. Between two barriers a
// kernel reads only what was written before the first of them.
class LayerWalk {
 public:
  LayerWalk(const Device& device, const StepModel& model, StepArena& arena,
            std::span<const CancelFlag* const> cancel)
      : kernels_(*device.kernels), model_(model), arena_(arena), cancel_(cancel) {}

  // Fills the arena's row lists and the attention plan for rows [first, first + count) of the batch.
  void prepare(const StepBatch& batch, size_t first, uint32_t count, uint32_t workers) {
    rows_ = count;
    wanted_ = hidden_ = 0;
    for (uint32_t r = 0; r < count; r++) {
      const StepRow& row = batch.rows[first + r];
      arena_.tokens[r] = row.token;
      arena_.positions[r] = row.position;
      arena_.attention_rows[r] = {&batch.views[row.view], row.position};
      if (row.hidden) {
        arena_.hidden_rows[hidden_] = r;
        arena_.hidden[hidden_++] = row.hidden;
      }
      if (!row.logits) continue;
      arena_.wanted_rows[wanted_] = r;
      arena_.logits[wanted_++] = row.logits;
    }
    plan_attention(workers);
  }

  void operator()(const Region& region) {
    const Share share{region.index(), region.count()};
    const StepModel& m = model_;
    const uint32_t pairs = uint32_t(m.inverse_frequencies.size());
    kernels_.gather({&m.token_embedding, m.position_embedding ? &m.position_embedding : nullptr,
                     arena_.tokens, arena_.positions, rows_, arena_.x},
                    share);
    if (pairs)
      kernels_.rotary(
          {m.inverse_frequencies.data(), pairs, m.rotary_scale, arena_.positions, rows_, arena_.cos_sin},
          share);
    region.barrier();
    for (uint32_t l = 0; l < m.layers.size(); l++) {
      // The flag is read once a layer and by one worker; all see it after the barrier, so all leave together.
      if (region.index() == 0) cancelled_ = is_cancelled();
      project(region, m.layers[l]);
      region.barrier();
      if (cancelled_) return;
      attend(region, l);
      mix(region, m.layers[l]);
    }
    if (hidden_) give_hidden(region);
    if (wanted_) head(region);
  }

  bool cancelled() const noexcept { return cancelled_; }
  bool finite() const noexcept { return finite_.load(std::memory_order_relaxed); }

 private:
  // An operand made by `make(operand, share)` and ready to be read: a single row is made by every worker for itself, more
  // rows are shared out.
  template <class Make>
  Operand produce(const Region& region, uint32_t rows, uint32_t width, uint32_t kinds, Make&& make) const {
    Operand operand{rows == 1 ? arena_.private_operand(region.index()) : arena_.operand, rows, width, kinds};
    if (rows == 1) {
      make(operand, Share{});
    } else {
      make(operand, Share{region.index(), region.count()});
      region.barrier();
    }
    return operand;
  }

  Operand normalise(const Region& region, const NormWeights& weights, const uint32_t* row_index,
                    uint32_t rows, uint32_t kinds) const {
    return produce(region, rows, model_.width, kinds, [&](const Operand& out, Share share) {
      kernels_.norm({model_.norm, model_.norm_epsilon, weights, arena_.x, row_index, out}, share);
    });
  }

  // Which forms of its operand a matrix reads, its adapter included.
  static uint32_t kinds_for(const PackedMatrix& matrix) {
    return operand_kind(matrix.type, matrix.compute) | (matrix.adapter ? kOperandFloat : 0);
  }

  // The products of `args`, adapters included. Many rows are handed out in pieces, because cores differ in speed; of a few,
  // which memory holds up, everyone has one slice. At most once between two barriers.
  void multiply(const Region& region, const LinearArgs& args) const {
    constexpr uint32_t kManyRows = 64, kPiecesPerWorker = 8;
    if (args.x.rows < kManyRows || region.count() == 1) {
      kernels_.linear(args, {region.index(), region.count()});
    } else {
      const uint32_t pieces = kPiecesPerWorker * region.count();
      for (uint32_t i = region.take(); i < pieces; i = region.take()) kernels_.linear(args, {i, pieces});
    }
    if (std::any_of(args.matrices, args.matrices + args.count, [](auto* matrix) { return matrix->adapter; }))
      adapt(region, args);
  }

  // out += b (scale * (a x)) for the matrices that have an adapter.
  void adapt(const Region& region, const LinearArgs& args) const {
    const Share share{region.index(), region.count()};
    LinearArgs down{.matrices = {}, .out = {}, .stride = {}, .count = 0, .accumulate = false, .x = args.x};
    for (uint32_t i = 0; i < args.count; i++) {
      if (!args.matrices[i]->adapter) continue;
      const PackedMatrix& a = args.matrices[i]->adapter->a;
      down.matrices[down.count] = &a;
      down.out[down.count] = arena_.adapted[i];
      down.stride[down.count++] = a.outputs;
    }
    kernels_.linear(down, share);
    region.barrier();
    Operand ups[kLinearMatrices];
    for (uint32_t i = 0; i < args.count; i++) {
      const LowRankAdapter* adapter = args.matrices[i]->adapter;
      if (!adapter) continue;
      ups[i] = {arena_.adapter_operand[i], args.x.rows, adapter->a.outputs, kOperandFloat};
      kernels_.pack_operand({.x = arena_.adapted[i], .out = ups[i], .scale = adapter->scale}, share);
    }
    region.barrier();
    for (uint32_t i = 0; i < args.count; i++)
      if (const LowRankAdapter* adapter = args.matrices[i]->adapter)
        kernels_.linear({{&adapter->b}, {args.out[i]}, {args.stride[i]}, 1, true, ups[i]}, share);
  }

  void project(const Region& region, const LayerWeights& layer) const {
    const uint32_t kinds = kinds_for(layer.q) | kinds_for(layer.k) | kinds_for(layer.v);
    const Operand x = normalise(region, layer.attention_norm, nullptr, rows_, kinds);
    multiply(region, {{&layer.q, &layer.k, &layer.v},
                      {arena_.q, arena_.k, arena_.v},
                      {layer.q.outputs, layer.k.outputs, layer.v.outputs},
                      3,
                      false,
                      x});
  }

  // Keys and values into the pages, then softmax(q k) v into the context.
  void attend(const Region& region, uint32_t layer) {
    const StepModel& m = model_;
    const LayerWeights& weights = m.layers[layer];
    const bool stored =
        kernels_.store({arena_.attention_rows, rows_, layer, m.heads, m.kv_heads, m.head_width,
                        weights.q_norm, weights.k_norm, m.norm_epsilon,
                        uint32_t(m.inverse_frequencies.size()), arena_.cos_sin, arena_.q, arena_.k, arena_.v},
                       {region.index(), region.count()});
    if (!stored) finite_.store(false, std::memory_order_relaxed);
    region.barrier();
    const AttentionArgs args{arena_.attention_rows,
                             layer,
                             m.heads,
                             m.kv_heads,
                             m.head_width,
                             weights.window,
                             1.0f / std::sqrt(float(m.head_width)),
                             arena_.q,
                             arena_.context,
                             arena_.partials,
                             arena_.attention_scratch(region.index())};
    for (uint32_t i = region.take(); i < arena_.units.size(); i = region.take())
      kernels_.attend(args, arena_.units[i]);
    region.barrier();
    if (arena_.merges.empty()) return;
    for (uint32_t i = region.take(); i < arena_.merges.size(); i = region.take()) {
      const StepArena::Merge& merge = arena_.merges[i];
      kernels_.merge({&arena_.units[merge.first_unit], merge.segments, &args});
    }
    region.barrier();
  }

  // x += o(context); x += mlp(norm(x)).
  void mix(const Region& region, const LayerWeights& layer) const {
    const Operand context =
        produce(region, rows_, layer.o.inputs, kinds_for(layer.o), [&](const Operand& out, Share share) {
          kernels_.pack_operand({arena_.context, out}, share);
        });
    add_to_x(region, layer.o, context);
    region.barrier();
    const bool gated = bool(layer.gate);
    const uint32_t kinds = kinds_for(layer.up) | (gated ? kinds_for(layer.gate) : 0);
    const Operand x = normalise(region, layer.mlp_norm, nullptr, rows_, kinds);
    multiply(region, {{&layer.up, &layer.gate, nullptr},
                      {arena_.up, arena_.gate, nullptr},
                      {layer.up.outputs, layer.gate.outputs, 0},
                      gated ? 2u : 1u,
                      false,
                      x});
    region.barrier();
    const Operand hidden =
        produce(region, rows_, model_.mlp_width, kinds_for(layer.down), [&](const Operand& out, Share share) {
          kernels_.activate({model_.activation, gated ? arena_.gate : nullptr, arena_.up, out}, share);
        });
    add_to_x(region, layer.down, hidden);
    region.barrier();
  }

  void add_to_x(const Region& region, const PackedMatrix& matrix, const Operand& operand) const {
    multiply(region, {{&matrix}, {arena_.x}, {model_.width}, 1, true, operand});
  }

  bool is_cancelled() const noexcept {
    return std::any_of(cancel_.begin(), cancel_.end(), [](const CancelFlag* flag) { return flag->is_set(); });
  }

  // The final norm of the rows that ask for it, each by one worker: a float operand of one row is the row itself.
  void give_hidden(const Region& region) {
    const size_t width = model_.width;
    for (uint32_t i = region.index(); i < hidden_; i += region.count()) {
      const Operand row{arena_.private_operand(region.index()), 1, model_.width, kOperandFloat};
      kernels_.norm(
          {model_.norm, model_.norm_epsilon, model_.final_norm, arena_.x, arena_.hidden_rows + i, row}, {});
      std::memcpy(arena_.hidden[i], row.data, width * sizeof(float));
      if (!kernels_.all_finite(arena_.hidden[i], width)) finite_.store(false, std::memory_order_relaxed);
    }
  }

  // Logits of the wanted rows, in pieces of about a layer's work (so that a cancel is seen soon), each a run of rows whose
  // outputs follow each other.
  void head(const Region& region) {
    const size_t vocabulary = model_.vocabulary;
    const uint32_t piece = head_piece();
    for (uint32_t first = 0; first < wanted_;) {
      uint32_t count = 1;
      while (first + count < wanted_ && count < piece &&
             arena_.logits[first + count] == arena_.logits[first + count - 1] + vocabulary)
        count++;
      if (region.index() == 0) cancelled_ = is_cancelled();
      region.barrier();  // also: nobody still reads the operand of the piece before
      if (cancelled_) return;
      const Operand x =
          normalise(region, model_.final_norm, arena_.wanted_rows + first, count, kinds_for(model_.head));
      float* const out = arena_.logits[first];
      multiply(region, {{&model_.head}, {out}, {vocabulary}, 1, false, x});
      region.barrier();
      const size_t values = count * vocabulary;
      const size_t begin = values * region.index() / region.count(),
                   end = values * (region.index() + 1) / region.count();
      if (!kernels_.all_finite(out + begin, end - begin)) finite_.store(false, std::memory_order_relaxed);
      first += count;
    }
  }

  uint32_t head_piece() const noexcept {
    const LayerWeights& l = model_.layers.front();
    uint64_t layer_work = 0;
    for (const PackedMatrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
      layer_work += uint64_t(m->outputs) * m->inputs;
    const uint64_t head_work = uint64_t(model_.head.outputs) * model_.head.inputs;
    constexpr uint64_t kLeast = 8;  // fewer rows would read the head's weights too often
    return uint32_t(std::clamp<uint64_t>(kMaxBlockRows * layer_work / std::max<uint64_t>(head_work, 1),
                                         kLeast, kMaxBlockRows));
  }

  // Units of work for attention: rows of one sequence x key/value head, and segments where there are few units for the
  // workers. Which way is taken never changes a result: segments are folded in order in both.
  void plan_attention(uint32_t workers) {
    arena_.units.clear();
    arena_.merges.clear();
    uint32_t groups = 0;
    size_t slots = 0;
    for_each_group([&](uint32_t first, uint32_t count) {
      groups++;
      slots += size_t(count) * model_.heads * segments(first + count - 1);
    });
    constexpr uint32_t kUnitsPerWorker = 4;  // evens out units of unequal length
    const bool split =
        workers > 1 && groups * model_.kv_heads < kUnitsPerWorker * workers && slots <= arena_.partial_slots;
    uint32_t slot = 0;
    for_each_group([&](uint32_t first, uint32_t count) {
      const uint32_t all = segments(first + count - 1);
      for (uint32_t h = 0; h < model_.kv_heads; h++) {
        if (!split || all == 1) {
          arena_.units.push_back({first, count, h, 0, all, -1});
          continue;
        }
        arena_.merges.push_back({uint32_t(arena_.units.size()), all});
        for (uint32_t s = 0; s < all; s++) {
          arena_.units.push_back({first, count, h, s, s + 1, int32_t(slot)});
          slot += count * (model_.heads / model_.kv_heads);
        }
      }
    });
  }

  // Calls f(first_row, rows) for runs of at most kMaxUnitRows rows of one sequence.
  template <class F>
  void for_each_group(F&& f) const {
    for (uint32_t first = 0; first < rows_;) {
      uint32_t count = 1;
      while (first + count < rows_ && count < kMaxUnitRows &&
             arena_.attention_rows[first + count].view == arena_.attention_rows[first].view)
        count++;
      f(first, count);
      first += count;
    }
  }

  uint32_t segments(uint32_t row) const noexcept { return arena_.positions[row] / kKeySegment + 1; }

  const KernelTable& kernels_;
  const StepModel& model_;
  StepArena& arena_;
  std::span<const CancelFlag* const> cancel_;
  uint32_t rows_ = 0, wanted_ = 0, hidden_ = 0;
  bool cancelled_ = false;  // written by worker 0 before a barrier, read by all after it
  std::atomic<bool> finite_{true};
};

}  // namespace

StepExecutor::StepExecutor(const Device& device, std::shared_ptr<ThreadPool> threads,
                           std::shared_ptr<MemoryAccount> account)
    : device_(device),
      threads_(std::move(threads)),
      workspace_(std::make_unique<StepWorkspace>(device, std::move(account))) {}

StepExecutor::~StepExecutor() = default;

void StepExecutor::reserve(const StepModel& model, uint32_t longest_context) {
  workspace_->reserve(model, longest_context, threads_->threads());
}

void StepExecutor::run(const StepModel& model, const StepBatch& batch) {
  const StepWorkspace::Lease arena = workspace_->borrow(model, threads_->threads());
  for (size_t first = 0; first < batch.rows.size(); first += kMaxBlockRows) {
    const uint32_t count = uint32_t(std::min<size_t>(kMaxBlockRows, batch.rows.size() - first));
    LayerWalk walk(device_, model, *arena, batch.cancel);
    walk.prepare(batch, first, count, threads_->threads());
    threads_->run([&](const Region& region) { walk(region); });
    if (walk.cancelled()) fail(Status::cancelled, "the step was cancelled");
    if (!walk.finite()) fail(Status::non_finite, "the step gave keys, values or outputs that are not finite");
  }
}

}  // namespace riftco
