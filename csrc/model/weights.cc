#include "model/weights.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "base/error.h"
#include "model/rotary.h"

namespace riftco {
namespace {

constexpr size_t kLine = 64;
constexpr char kRotaryFactors[] = "rotary.factors";

size_t parameter_bytes(const Device& device, const ParameterInfo& p) {
  const size_t bytes =
      p.is_vector ? 4 * size_t(p.columns) : device.kernels->packed_bytes(p.type, p.rows, p.columns);
  return (bytes + kLine - 1) / kLine * kLine;
}

void check_range(const ParameterInfo& p, uint32_t first, uint32_t rows) {
  if (first > p.rows || rows > p.rows - first)
    fail(Status::out_of_range, "rows %u + %u exceed the %u rows of %s", first, rows, p.rows, p.name.c_str());
}

}  // namespace

std::vector<ParameterInfo> parameter_list(const ModelConfig& c, DType type) {
  std::vector<ParameterInfo> list;
  auto matrix = [&](std::string name, uint32_t rows, uint32_t columns) {
    list.push_back({std::move(name), type, rows, columns, false});
  };
  auto vector = [&](std::string name, uint32_t size) {
    list.push_back({std::move(name), DType::f32, 1, size, true});
  };
  auto norm = [&](const std::string& name) {
    vector(name + ".weight", c.width);
    if (c.biases & kBiasNorms) vector(name + ".bias", c.width);
  };
  auto linear = [&](const std::string& name, uint32_t outputs, uint32_t inputs, Bias bias) {
    matrix(name + ".weight", outputs, inputs);
    if (c.biases & bias) vector(name + ".bias", outputs);
  };
  const uint32_t heads = c.head_count * c.head_width, kv_heads = c.kv_head_count * c.head_width;
  matrix("embedding.token", c.vocabulary_size, c.width);
  if (c.position == PositionKind::learned) matrix("embedding.position", c.maximum_context, c.width);
  if (c.rotary_scaling == RotaryScaling::factors) vector(kRotaryFactors, c.rotary_width / 2);
  for (uint32_t l = 0; l < c.layer_count; l++) {
    const std::string layer = "layers." + std::to_string(l);
    norm(layer + ".attention_norm");
    linear(layer + ".q", heads, c.width, kBiasQ);
    if (c.qk_norm) vector(layer + ".q_norm.weight", c.head_width);
    linear(layer + ".k", kv_heads, c.width, kBiasK);
    if (c.qk_norm) vector(layer + ".k_norm.weight", c.head_width);
    linear(layer + ".v", kv_heads, c.width, kBiasV);
    linear(layer + ".o", c.width, heads, kBiasO);
    norm(layer + ".mlp_norm");
    if (c.activation == Activation::silu_gated) linear(layer + ".gate", c.mlp_width, c.width, kBiasGate);
    linear(layer + ".up", c.mlp_width, c.width, kBiasUp);
    linear(layer + ".down", c.width, c.mlp_width, kBiasDown);
  }
  norm("final_norm");
  if (!c.tied_head) matrix("head.weight", c.vocabulary_size, c.width);
  if (c.biases & kBiasHead) vector("head.bias", c.vocabulary_size);
  return list;
}

Weights::Weights(const Device& device, const ModelConfig& config, std::vector<ParameterInfo> parameters,
                 std::shared_ptr<MemoryAccount> account)
    : device_(device), config_(config), parameters_(std::move(parameters)) {
  size_t size = 0;
  offsets_.reserve(parameters_.size());
  for (const ParameterInfo& p : parameters_) {
    offsets_.push_back(size);
    if (!p.is_vector) row_bytes(p.type, p.columns);  // whole blocks
    if (__builtin_add_overflow(size, parameter_bytes(device, p), &size))
      fail(Status::overflow, "the weights exceed the address space at %s", p.name.c_str());
  }
  storage_ = Buffer(std::move(account), size, "the weights", Pages::huge);
  build_step_model();
}

size_t Weights::packed_bytes(const Device& device, const std::vector<ParameterInfo>& parameters) {
  size_t size = 0;
  for (const ParameterInfo& p : parameters)
    if (__builtin_add_overflow(size, parameter_bytes(device, p), &size))
      fail(Status::overflow, "the weights exceed the address space");
  return size;
}

void Weights::build_step_model() {
  std::unordered_map<std::string, size_t> by_name;
  for (size_t i = 0; i < parameters_.size(); i++) by_name.emplace(parameters_[i].name, i);
  auto vector = [&](const std::string& name) -> const float* {
    const auto it = by_name.find(name);
    return it == by_name.end() ? nullptr
                               : reinterpret_cast<const float*>(storage_.data() + offsets_[it->second]);
  };
  auto table = [&](const std::string& name, const float* bias) -> PackedMatrix {
    const auto it = by_name.find(name);
    if (it == by_name.end()) return {};
    const ParameterInfo& p = parameters_[it->second];
    return {p.type, p.rows, p.columns, storage_.data() + offsets_[it->second], bias};
  };
  auto matrix = [&](const std::string& name) { return table(name + ".weight", vector(name + ".bias")); };
  auto norm = [&](const std::string& name) {
    return NormWeights{vector(name + ".weight"), vector(name + ".bias")};
  };
  const ModelConfig& c = config_;
  StepModel& m = step_model_;
  m.width = c.width;
  m.heads = c.head_count;
  m.kv_heads = c.kv_head_count;
  m.head_width = c.head_width;
  m.mlp_width = c.mlp_width;
  m.vocabulary = c.vocabulary_size;
  m.norm = c.norm;
  m.norm_epsilon = float(c.norm_epsilon);
  m.activation = c.activation;
  inverse_frequencies_.resize(c.rotary_width / 2);  // with factors from set_rows on
  if (c.rotary_scaling != RotaryScaling::factors) inverse_frequencies_ = rotary_frequencies(c, {});
  m.inverse_frequencies = inverse_frequencies_;
  m.rotary_scale = c.rotary_attention_factor;
  for (uint32_t l = 0; l < c.layer_count; l++) {
    const std::string at = "layers." + std::to_string(l);
    layers_.push_back({norm(at + ".attention_norm"), norm(at + ".mlp_norm"), matrix(at + ".q"),
                       matrix(at + ".k"), matrix(at + ".v"), matrix(at + ".o"), matrix(at + ".gate"),
                       matrix(at + ".up"), matrix(at + ".down"), vector(at + ".q_norm.weight"),
                       vector(at + ".k_norm.weight"),
                       c.sliding_window && l >= c.first_window_layer ? c.sliding_window : kAllKeys});
  }
  m.layers = layers_;
  m.token_embedding = table("embedding.token", nullptr);
  m.position_embedding = table("embedding.position", nullptr);
  m.final_norm = norm("final_norm");
  m.head = table(c.tied_head ? "embedding.token" : "head.weight", vector("head.bias"));
}

void Weights::set_rows(size_t index, uint32_t first, uint32_t rows, const std::byte* file_rows) {
  const ParameterInfo& p = parameters_.at(index);
  check_range(p, first, rows);
  const size_t stride = row_bytes(p.type, p.columns);
  for (uint32_t r = 0; r < rows; r++)
    if (!row_is_finite(p.type, file_rows + r * stride, p.columns))
      fail(Status::corrupt_data, "row %u of %s has a value or scale that is not finite", first + r,
           p.name.c_str());
  std::byte* const data = storage_.data() + offsets_[index];
  if (p.is_vector) {
    std::memcpy(data, file_rows, rows * stride);
    if (p.name == kRotaryFactors) set_rotary_factors({reinterpret_cast<const float*>(data), p.columns});
  } else {
    device_.kernels->pack_rows({p.type, p.rows, p.columns, data, nullptr}, first, rows, file_rows);
  }
}

void Weights::set_rotary_factors(std::span<const float> factors) {
  for (const float f : factors)
    if (!(f >= 1e-6f && f <= 1e6f))
      fail(Status::corrupt_data, "%s has %g, not in 1e-6 .. 1e6", kRotaryFactors, double(f));
  const std::vector<double> frequencies = rotary_frequencies(config_, factors);
  std::copy(frequencies.begin(), frequencies.end(), inverse_frequencies_.begin());
}

void Weights::get_rows(size_t index, uint32_t first, uint32_t rows, std::byte* file_rows) const {
  const ParameterInfo& p = parameters_.at(index);
  check_range(p, first, rows);
  std::byte* const data = storage_.data() + offsets_[index];
  if (p.is_vector) {
    std::memcpy(file_rows, data, rows * row_bytes(p.type, p.columns));
  } else {
    device_.kernels->unpack_rows({p.type, p.rows, p.columns, data, nullptr}, first, rows, file_rows);
  }
}

void Weights::read_floats(size_t index, float* values) const {
  const ParameterInfo& p = parameters_.at(index);
  std::vector<std::byte> row(row_bytes(p.type, p.columns));
  for (uint32_t r = 0; r < p.rows; r++) {
    get_rows(index, r, 1, row.data());
    dequantise(p.type, row.data(), {values + size_t(r) * p.columns, p.columns});
  }
}

}  // namespace riftco
