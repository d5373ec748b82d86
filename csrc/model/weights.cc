#include "model/weights.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "base/error.h"
#include "model/rotary.h"

namespace riftco {
namespace {

constexpr char kRotaryFactors[] = "rotary.factors";

// The parameters, where `compute` has something to compute with.
std::vector<ParameterInfo> checked(std::vector<ParameterInfo> parameters, const ModelConfig& config,
                                   Compute compute) {
  const auto is_multiplied_as_bf16 = [&](const ParameterInfo& p) {
    return p.type == DType::bf16 && p.name != "embedding.position" &&
           (p.name != "embedding.token" || config.tied_head);
  };
  if (compute == Compute::bf16 && std::ranges::none_of(parameters, is_multiplied_as_bf16))
    fail(Status::unsupported,
         "compute bf16 needs matrices of bf16, and the model multiplies with none; load it with type bf16");
  return parameters;
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
                 std::shared_ptr<MemoryAccount> account, Compute compute)
    : ParameterStore(device, checked(std::move(parameters), config, compute), std::move(account),
                     "the weights"),
      config_(config) {
  step_model_.compute = compute;
  build_step_model();
}

void Weights::build_step_model() {
  std::unordered_map<std::string, size_t> by_name;
  for (size_t i = 0; i < parameters().size(); i++) by_name.emplace(parameters()[i].name, i);
  auto vector = [&](const std::string& name) -> const float* {
    const auto it = by_name.find(name);
    return it == by_name.end() ? nullptr : reinterpret_cast<const float*>(data(it->second));
  };
  auto table = [&](const std::string& name, const float* bias) -> PackedMatrix {
    const auto it = by_name.find(name);
    if (it == by_name.end()) return {};
    PackedMatrix found = matrix(it->second);
    found.bias = bias;
    if (found.type == DType::bf16) found.compute = step_model_.compute;
    return found;
  };
  auto linear = [&](const std::string& name) { return table(name + ".weight", vector(name + ".bias")); };
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
    layers_.push_back({norm(at + ".attention_norm"), norm(at + ".mlp_norm"), linear(at + ".q"),
                       linear(at + ".k"), linear(at + ".v"), linear(at + ".o"), linear(at + ".gate"),
                       linear(at + ".up"), linear(at + ".down"), vector(at + ".q_norm.weight"),
                       vector(at + ".k_norm.weight"),
                       c.sliding_window && l >= c.first_window_layer ? c.sliding_window : kAllKeys});
  }
  m.layers = layers_;
  m.token_embedding = table("embedding.token", nullptr);
  m.position_embedding = table("embedding.position", nullptr);
  m.final_norm = norm("final_norm");
  m.head = table(c.tied_head ? "embedding.token" : "head.weight", vector("head.bias"));
}

void Weights::set_adapter(const LinearPlace& place, const LowRankAdapter* adapter) noexcept {
  (place.matrix ? layers_[place.layer].*place.matrix : step_model_.head).adapter = adapter;
}

bool Weights::widen(const std::shared_ptr<MemoryAccount>& account) {
  std::vector<ParameterInfo> wide = parameters();
  bool changes = false;
  for (ParameterInfo& p : wide) {
    if (is_quantised(p.type) || p.type == DType::f32) continue;
    p.type = DType::f32;
    changes = true;
  }
  if (!changes) return false;
  Weights copy(device(), config_, std::move(wide), account);
  std::vector<std::byte> row;
  std::vector<float> values;
  for (size_t i = 0; i < parameters().size(); i++) {
    const ParameterInfo& p = parameters()[i];
    row.resize(row_bytes(p.type, p.columns));
    values.resize(p.columns);
    for (uint32_t r = 0; r < p.rows; r++) {
      get_rows(i, r, 1, row.data());
      if (p.type == copy.parameters()[i].type) {
        copy.set_rows(i, r, 1, row.data());
        continue;
      }
      dequantise(p.type, row.data(), values);
      copy.set_rows(i, r, 1, reinterpret_cast<const std::byte*>(values.data()));
    }
  }
  swap_storage(copy);
  layers_.swap(copy.layers_);
  inverse_frequencies_.swap(copy.inverse_frequencies_);
  std::swap(step_model_, copy.step_model_);  // what it spans went along
  return true;
}

void Weights::set_rows(size_t index, uint32_t first, uint32_t rows, const std::byte* file_rows) {
  const ParameterInfo& p = parameters().at(index);
  if (p.name == kRotaryFactors) {
    std::vector<float> factors(p.columns);
    std::memcpy(factors.data(), file_rows, p.columns * sizeof(float));
    set_rotary_factors(factors);
  }
  ParameterStore::set_rows(index, first, rows, file_rows);
}

void Weights::set_rotary_factors(std::span<const float> factors) {
  for (const float f : factors)
    if (!(f >= 1e-6f && f <= 1e6f))
      fail(Status::corrupt_data, "%s has %g, not in 1e-6 .. 1e6", kRotaryFactors, double(f));
  const std::vector<double> frequencies = rotary_frequencies(config_, factors);
  std::copy(frequencies.begin(), frequencies.end(), inverse_frequencies_.begin());
}

}  // namespace riftco
