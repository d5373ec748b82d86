#include "train/linear_layer.h"

#include <algorithm>

#include "core/dtype.h"

namespace riftco {
namespace {

// The matrix alone; training multiplies exactly, whatever steps do.
PackedMatrix alone(PackedMatrix m) {
  m.adapter = nullptr;
  m.compute = Compute::exact;
  return m;
}

// Calls fn(matrix of outputs [first, first + count) as f32, first) for chunks of a matrix without its adapter; an f32 matrix is
// one chunk.
template <class Fn>
void for_each_float_chunk(const TrainingContext& c, const PackedMatrix& m, Fn fn) {
  if (m.type == DType::f32) return fn(alone(m), 0u);
  const size_t row = row_bytes(m.type, m.inputs);
  for (uint32_t first = 0; first < m.outputs; first += kChunkOutputs) {
    const uint32_t count = std::min(kChunkOutputs, m.outputs - first);
    const PackedMatrix floats = {.type = DType::f32,
                                 .outputs = count,
                                 .inputs = m.inputs,
                                 .data = c.chunk,
                                 .bias = m.bias ? m.bias + first : nullptr};
    c.threads.run([&](const Region& region) {  // a panel's rows belong to one worker
      constexpr uint32_t kStep = 96;
      float* values = reinterpret_cast<float*>(c.scratch_of(region.index()));
      for (uint32_t r = region.index() * kStep; r < count; r += region.count() * kStep)
        for (uint32_t i = r; i < std::min(r + kStep, count); i++) {
          std::byte* bytes = c.file_rows + region.index() * row;
          c.kernels.unpack_rows(m, first + i, 1, bytes);
          dequantise(m.type, bytes, {values, m.inputs});
          c.kernels.pack_rows(floats, i, 1, reinterpret_cast<const std::byte*>(values));
        }
    });
    fn(floats, first);
  }
}

void multiply(const TrainingContext& c, const PackedMatrix& m, const Operand& x, float* y, size_t stride,
              bool accumulate) {
  c.run(c.kernels.linear,
        LinearArgs{{&m, nullptr, nullptr}, {y, nullptr, nullptr}, {stride, 0, 0}, 1, accumulate, x});
}

// dx (+)= W^T dy, without an adapter.
void transposed_product(const TrainingContext& c, const PackedMatrix& m, uint32_t rows, const float* dy,
                        float* dx, bool accumulate) {
  for_each_float_chunk(c, m, [&](const PackedMatrix& floats, uint32_t at) {
    for (uint32_t first = 0; first < floats.outputs; first += kChunkOutputs) {
      const uint32_t count = std::min(kChunkOutputs, floats.outputs - first);
      const PackedMatrix transposed = {
          .type = DType::f32, .outputs = m.inputs, .inputs = count, .data = c.chunk_transposed};
      c.run(c.training.transpose_packed, TransposeArgs{&floats, first, count, &transposed});
      const Operand d{c.operand, rows, count, kOperandFloat};
      c.run(c.kernels.pack_operand, PackArgs{.x = dy + at + first, .out = d, .stride = m.outputs});
      multiply(c, transposed, d, dx, m.inputs, accumulate || at + first > 0);
    }
  });
}

// gradient += dy^T x.
void weight_gradient(const TrainingContext& c, float* gradient, const Operand& x, const float* dy,
                     uint32_t outputs) {
  c.threads.run([&](const Region& region) {
    c.training.accumulate_outer({x, dy, outputs, outputs, gradient, c.scratch_of(region.index())},
                                {region.index(), region.count()});
  });
}

Operand transpose_rows(const TrainingContext& c, const float* x, uint32_t rows, uint32_t columns,
                       std::byte* memory) {
  const Operand transposed{memory, columns, rows, kOperandFloat};
  c.run(c.training.pack_transposed, PackTransposedArgs{x, columns, transposed});
  return transposed;
}

void scale_rows(float* x, size_t count, float scale) {
  for (size_t i = 0; i < count; i++) x[i] *= scale;
}

// scale * (a x), [rows, rank], in the context's scratch.
const float* low_rank(const TrainingContext& c, const LowRankAdapter& adapter, const Operand& x) {
  multiply(c, adapter.a, x, c.low, adapter.a.outputs, false);
  scale_rows(c.low, size_t(x.rows) * adapter.a.outputs, adapter.scale);
  return c.low;
}

// scale * (b^T dy), [rows, rank], in the context's scratch: the gradient of a x.
const float* low_rank_gradient(const TrainingContext& c, const LowRankAdapter& adapter, uint32_t rows,
                               const float* dy) {
  transposed_product(c, adapter.b, rows, dy, c.d_low, false);
  scale_rows(c.d_low, size_t(rows) * adapter.a.outputs, adapter.scale);
  return c.d_low;
}

void adapter_gradients(const TrainingContext& c, const LowRankAdapter& adapter, const LinearInput& input,
                       uint32_t rows, const float* dy) {
  const uint32_t rank = adapter.a.outputs;
  float *da = c.gradient_of(adapter.a.data), *db = c.gradient_of(adapter.b.data);
  if (!da || !db) return;
  const float* low = low_rank(c, adapter, pack_rows(c, input.x, rows, adapter.a.inputs));
  weight_gradient(c, db, transpose_rows(c, low, rows, rank, c.operand), dy, adapter.b.outputs);
  weight_gradient(c, da, input.transposed, low_rank_gradient(c, adapter, rows, dy), rank);
}

bool is_trained(const TrainingContext& c, const PackedMatrix& m) {
  return c.gradient_of(m.data) || (m.adapter && c.gradient_of(m.adapter->a.data));
}

}  // namespace

Operand pack_rows(const TrainingContext& c, const float* x, uint32_t rows, uint32_t width) {
  const Operand operand{c.operand, rows, width, kOperandFloat};
  c.run(c.kernels.pack_operand, PackArgs{.x = x, .out = operand});
  return operand;
}

void linear_forward(const TrainingContext& c, const PackedMatrix& m, const Operand& x, float* y,
                    bool accumulate) {
  if (is_quantised(m.type)) {
    for_each_float_chunk(c, m, [&](const PackedMatrix& floats, uint32_t first) {
      multiply(c, floats, x, y + first, m.outputs, accumulate);
    });
  } else {
    multiply(c, alone(m), x, y, m.outputs, accumulate);
  }
  if (!m.adapter) return;
  const float* low = low_rank(c, *m.adapter, x);
  const Operand operand{c.transposed, x.rows, m.adapter->a.outputs, kOperandFloat};
  c.run(c.kernels.pack_operand, PackArgs{.x = low, .out = operand});
  multiply(c, m.adapter->b, operand, y, m.outputs, true);
}

LinearInput linear_input(const TrainingContext& c, const float* x, uint32_t rows, uint32_t inputs,
                         std::initializer_list<const PackedMatrix*> matrices) {
  const bool trained =
      std::any_of(matrices.begin(), matrices.end(), [&](const PackedMatrix* m) { return is_trained(c, *m); });
  return {x, trained ? transpose_rows(c, x, rows, inputs, c.transposed) : Operand{}};
}

void linear_parameter_gradients(const TrainingContext& c, const PackedMatrix& m, const LinearInput& input,
                                uint32_t rows, const float* dy) {
  if (float* gradient = c.gradient_of(m.data)) weight_gradient(c, gradient, input.transposed, dy, m.outputs);
  if (float* bias = m.bias ? c.gradient_of(m.bias) : nullptr)
    c.run(c.training.column_sums, ColumnSumArgs{dy, m.outputs, rows, m.outputs, bias});
  if (m.adapter) adapter_gradients(c, *m.adapter, input, rows, dy);
}

void linear_input_gradient(const TrainingContext& c, const PackedMatrix& m, uint32_t rows, const float* dy,
                           float* dx, bool accumulate) {
  transposed_product(c, m, rows, dy, dx, accumulate);
  if (m.adapter)
    transposed_product(c, m.adapter->a, rows, low_rank_gradient(c, *m.adapter, rows, dy), dx, true);
}

}  // namespace riftco
