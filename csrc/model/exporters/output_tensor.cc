#include "model/exporters/output_tensor.h"

#include <algorithm>
#include <unordered_map>

#include "core/quantise.h"
#include "model/element_type.h"

namespace riftco {
namespace {

constexpr size_t kPieceBytes = 1 << 20;

// Rows [first, first + count) of a parameter in `type`.
void read_rows(const Weights& weights, size_t index, uint32_t first, uint32_t count, DType type,
               std::byte* out) {
  const ParameterInfo& p = weights.parameters()[index];
  if (type == p.type) return weights.get_rows(index, first, count, out);
  std::vector<std::byte> rows(count * row_bytes(p.type, p.columns));
  weights.get_rows(index, first, count, rows.data());
  convert_rows(p, first, count, p.type, rows.data(), type, out);
}

bool is_exact(const Weights& weights, size_t index, DType type) {
  if (is_quantised(type)) return false;
  const ParameterInfo& p = weights.parameters()[index];
  std::vector<float> values(p.columns), again(p.columns);
  std::vector<std::byte> row(row_bytes(type, p.columns));
  weights.get_rows(index, 0, 1, reinterpret_cast<std::byte*>(values.data()));
  quantise(type, values, row.data());
  dequantise(type, row.data(), again);
  return values == again;
}

// Rows (or elements) of whole heads from half-split order to interleaved pairs.
void interleave(std::byte* rows, size_t count, uint32_t head_width, size_t bytes) {
  std::vector<std::byte> head(head_width * bytes);
  for (size_t first = 0; first < count; first += head_width) {
    std::byte* const at = rows + first * bytes;
    std::copy_n(at, head.size(), head.begin());
    for (uint32_t row = 0; row < head_width; row++)
      std::copy_n(head.begin() + ptrdiff_t(row * bytes), bytes,
                  at + (2 * (row % (head_width / 2)) + row / (head_width / 2)) * bytes);
  }
}

// [outputs, inputs] parts, one below the other, as [inputs, all outputs].
void write_transposed(const Weights& weights, const OutputTensor& t, Progress& progress,
                      const std::function<void(std::span<const std::byte>)>& write) {
  const size_t element = dtype_info(t.type).bytes, inputs = t.shape[0], outputs = t.shape[1];
  std::vector<std::byte> rows(t.bytes), line(outputs * element);
  std::byte* at = rows.data();
  for (const size_t index : t.parameters) {
    const uint32_t count = weights.parameters()[index].rows;
    read_rows(weights, index, 0, count, t.type, at);
    at += count * inputs * element;
  }
  for (size_t i = 0; i < inputs; i++) {
    for (size_t o = 0; o < outputs; o++)
      std::copy_n(rows.data() + (o * inputs + i) * element, element, line.data() + o * element);
    write(line);
    progress.advance(line.size());
  }
}

}  // namespace

std::vector<OutputTensor> plan_tensors(const Weights& weights, std::optional<DType> type, VectorTypes vectors,
                                       const std::function<TensorName(const std::string&)>& name) {
  std::vector<OutputTensor> tensors;
  std::unordered_map<std::string, size_t> by_name;
  DType matrices = DType::f32;  // of the last one
  for (size_t i = 0; i < weights.parameters().size(); i++) {
    const ParameterInfo& p = weights.parameters()[i];
    const TensorName target = name(p.name);
    DType wanted = DType::f32;
    if (!p.is_vector) {
      wanted = matrices = element_type(p, type);
    } else if (vectors == VectorTypes::as_matrices && is_exact(weights, i, matrices)) {
      wanted = matrices;
    }
    const auto [at, is_new] = by_name.emplace(target.name, tensors.size());
    if (is_new) {
      const std::vector<uint64_t> shape =
          p.is_vector ? std::vector<uint64_t>{0} : std::vector<uint64_t>{0, p.columns};
      tensors.push_back({target.name, wanted, shape, 0, {}, target.transposed, target.interleaved});
    }
    OutputTensor& tensor = tensors[at->second];
    if (p.is_vector && tensor.type != wanted) tensor.type = DType::f32;
    if (!p.is_vector && tensor.type != wanted)
      fail(Status::unsupported, "%s is %s, other parts of the tensor %s are %s; choose one type for all",
           p.name.c_str(), dtype_info(wanted).name, tensor.name.c_str(), dtype_info(tensor.type).name);
    tensor.shape[0] += p.is_vector ? p.columns : p.rows;
    tensor.parameters.push_back(i);
  }
  for (OutputTensor& tensor : tensors) {
    const uint64_t rows = tensor.shape.size() == 1 ? 1 : tensor.shape[0];
    tensor.bytes = rows * row_bytes(tensor.type, tensor.shape.back());
    if (tensor.transposed) std::swap(tensor.shape[0], tensor.shape[1]);
  }
  return tensors;
}

uint64_t total_bytes(std::span<const OutputTensor> tensors) noexcept {
  uint64_t bytes = 0;
  for (const OutputTensor& tensor : tensors) bytes += tensor.bytes;
  return bytes;
}

void write_tensor(const Weights& weights, const OutputTensor& t, Progress& progress,
                  const std::function<void(std::span<const std::byte>)>& write) {
  if (t.transposed) return write_transposed(weights, t, progress, write);
  const uint32_t head = t.interleaved ? weights.config().head_width : 1;
  std::vector<std::byte> piece;
  for (const size_t index : t.parameters) {
    const ParameterInfo& p = weights.parameters()[index];
    const size_t bytes = row_bytes(t.type, p.columns),
                 heads = std::max<size_t>(kPieceBytes / bytes / head, 1);
    const uint32_t step = uint32_t(std::min<size_t>(p.rows, heads * head));
    for (uint32_t first = 0; first < p.rows; first += step) {
      const uint32_t count = std::min(step, p.rows - first);
      piece.resize(count * bytes);
      read_rows(weights, index, first, count, t.type, piece.data());
      if (t.interleaved && p.is_vector) interleave(piece.data(), p.columns, head, bytes / p.columns);
      if (t.interleaved && !p.is_vector) interleave(piece.data(), count, head, bytes);
      write(piece);
      progress.advance(piece.size());
    }
  }
}

}  // namespace riftco
