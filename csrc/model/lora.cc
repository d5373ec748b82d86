#include "model/lora.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "model/normal.h"

namespace riftco {
namespace {

constexpr uint64_t kStream = uint64_t(1) << 32;  // apart from those of a model's own matrices

struct Target {
  LoraTarget bit;
  const char* name;
  PackedMatrix LayerWeights::*matrix;
};
constexpr Target kLayerTargets[] = {
    {kLoraQ, "q", &LayerWeights::q},          {kLoraK, "k", &LayerWeights::k},
    {kLoraV, "v", &LayerWeights::v},          {kLoraO, "o", &LayerWeights::o},
    {kLoraGate, "gate", &LayerWeights::gate}, {kLoraUp, "up", &LayerWeights::up},
    {kLoraDown, "down", &LayerWeights::down}};
constexpr uint32_t kAllTargets = 255;

void check_options(const LoraOptions& options, std::span<const LinearPlace> places, const Weights& weights) {
  if (options.rank == 0) fail(Status::invalid_argument, "the rank of adapters is 0");
  const double scale = options.alpha / options.rank;
  if (!(options.alpha > 0) || !std::isfinite(float(scale)) || float(scale) == 0)
    fail(Status::invalid_argument, "alpha %g of rank %u gives no scale above 0", options.alpha, options.rank);
  for (const LinearPlace& place : places) {
    const PackedMatrix& matrix = weights.linear(place);
    if (options.rank > std::min(matrix.outputs, matrix.inputs))
      fail(Status::out_of_range, "a rank of %u is more than %s.weight [%u, %u] has", options.rank,
           place.name.c_str(), matrix.outputs, matrix.inputs);
  }
}

// Adds adapters to matrices; all memory is there from the start.
class Merge {
 public:
  Merge(const Weights& weights, const LoraAdapters& lora, const std::shared_ptr<MemoryAccount>& account)
      : weights_(weights), kernels_(*weights.device().kernels), lora_(lora) {
    size_t inputs = 0, packed = 0;
    for (size_t i = 0; i < lora.places().size(); i++) {
      indices_.push_back(weights.find(lora.places()[i].name + ".weight").value());
      const ParameterInfo& p = weights.parameters()[indices_.back()];
      inputs = std::max<size_t>(inputs, p.columns);
      packed = std::max(packed, kernels_.packed_bytes(DType::f32, p.columns, rank()));
    }
    rows_ = uint32_t(std::clamp<size_t>((size_t(1) << 18) / inputs, 1, kMaxBlockRows));
    transposed_ = Buffer(account, packed, "merging adapters");
    operand_ = Buffer(account, kernels_.operand_bytes(rows_, rank(), kOperandFloat), "merging adapters");
    stored_.resize(rows_ * inputs * sizeof(float));
    values_.resize(rows_ * inputs);
    b_rows_.resize(size_t(rows_) * rank());
    a_.resize(inputs * rank());
    column_.resize(rank());
  }

  // Calls give(parameter, first row, rows, their new values) for all rows that change.
  template <class Give>
  void run(Give&& give) {
    for (size_t i = 0; i < lora_.places().size(); i++) {
      const size_t index = indices_[i];
      const ParameterInfo& p = weights_.parameters()[index];
      const PackedMatrix a = transpose(i);
      for (uint32_t first = 0; first < p.rows; first += rows_) {
        const uint32_t count = std::min(rows_, p.rows - first);
        weights_.get_rows(index, first, count, stored_.data());
        const size_t row = row_bytes(p.type, p.columns);
        for (uint32_t r = 0; r < count; r++)
          dequantise(p.type, &stored_[r * row], &values_[size_t(r) * p.columns], p.columns);
        lora_.parameters().get_rows(2 * i + 1, first, count, reinterpret_cast<std::byte*>(b_rows_.data()));
        const Operand b{operand_.data(), count, rank(), kOperandFloat};
        kernels_.pack_operand({.x = b_rows_.data(), .out = b, .scale = lora_.adapter(i).scale}, {});
        kernels_.linear({{&a}, {values_.data()}, {p.columns}, 1, true, b}, {});
        give(index, first, count, values_.data());
      }
    }
  }

 private:
  uint32_t rank() const noexcept { return lora_.options().rank; }

  // A as a matrix from the rank to the inputs.
  PackedMatrix transpose(size_t place) {
    const PackedMatrix& a = lora_.adapter(place).a;
    const PackedMatrix out{
        .type = DType::f32, .outputs = a.inputs, .inputs = a.outputs, .data = transposed_.data()};
    lora_.parameters().get_rows(2 * place, 0, a.outputs, reinterpret_cast<std::byte*>(a_.data()));
    std::memset(transposed_.data(), 0, transposed_.size());
    for (uint32_t c = 0; c < a.inputs; c++) {
      for (uint32_t r = 0; r < a.outputs; r++) column_[r] = a_[size_t(r) * a.inputs + c];
      kernels_.pack_rows(out, c, 1, reinterpret_cast<const std::byte*>(column_.data()));
    }
    return out;
  }

  const Weights& weights_;
  const KernelTable& kernels_;
  const LoraAdapters& lora_;
  std::vector<size_t> indices_;  // of the places' matrices
  uint32_t rows_ = 0;            // of a matrix at a time
  Buffer transposed_, operand_;  // A of a place; rows of B
  std::vector<std::byte> stored_;
  std::vector<float> values_, b_rows_, a_, column_;
};

void check_mergeable(const Weights& weights, const LoraAdapters& lora) {
  for (const LinearPlace& place : lora.places()) {
    const std::string name = place.name + ".weight";
    const auto index = weights.find(name);
    if (!index)
      fail(Status::unsupported,
           "the head is the token embedding, which merging its adapter would change too; detach it or save "
           "it alone");
    const DType type = weights.parameters()[*index].type;
    if (is_quantised(type))
      fail(Status::unsupported,
           "%s is %s: adapters merge into f32, f16 or bf16; convert the model to one of them first",
           name.c_str(), dtype_info(type).name);
  }
}

}  // namespace

std::vector<LinearPlace> lora_places(const ModelConfig& config, uint32_t targets) {
  if (targets == 0) fail(Status::invalid_argument, "adapters have no target");
  if (targets & ~kAllTargets)
    fail(Status::invalid_argument, "targets 0x%X has bits that name no matrix", targets);
  if ((targets & kLoraGate) && config.activation != Activation::silu_gated)
    fail(Status::invalid_argument, "adapters of gate: the model's activation is not gated");
  std::vector<LinearPlace> places;
  for (uint32_t layer = 0; layer < config.layer_count; layer++)
    for (const Target& target : kLayerTargets)
      if (targets & target.bit)
        places.push_back({"layers." + std::to_string(layer) + "." + target.name, layer, target.matrix});
  if (targets & kLoraHead) places.push_back({"head", 0, nullptr});
  return places;
}

LoraAdapters::LoraAdapters(const Weights& weights, const LoraOptions& options,
                           std::shared_ptr<MemoryAccount> account)
    : options_(options), places_(lora_places(weights.config(), options.targets)) {
  check_options(options, places_, weights);
  std::vector<ParameterInfo> list;
  for (const LinearPlace& place : places_) {
    const PackedMatrix& matrix = weights.linear(place);
    list.push_back({place.name + ".lora_a", DType::f32, options.rank, matrix.inputs, false});
    list.push_back({place.name + ".lora_b", DType::f32, matrix.outputs, options.rank, false});
  }
  parameters_ =
      std::make_unique<ParameterStore>(weights.device(), std::move(list), std::move(account), "adapters");
  for (size_t i = 0; i < places_.size(); i++)
    adapters_.push_back(
        {parameters_->matrix(2 * i), parameters_->matrix(2 * i + 1), float(options.alpha / options.rank)});
}

void LoraAdapters::draw() {
  const double deviation = 1 / std::sqrt(double(options_.rank));
  std::vector<float> row;
  for (size_t i = 0; i < parameters_->parameters().size(); i += 2) {
    const ParameterInfo& p = parameters_->parameters()[i];
    row.resize(p.columns);
    for (uint32_t r = 0; r < p.rows; r++) {
      for (uint32_t c = 0; c < p.columns; c++)
        row[c] = normal(options_.seed, kStream + i, uint64_t(r) * p.columns + c, deviation);
      parameters_->set_rows(i, r, 1, reinterpret_cast<const std::byte*>(row.data()));
    }
  }
}

void LoraAdapters::install(Weights& weights) const noexcept {
  for (size_t i = 0; i < places_.size(); i++) weights.set_adapter(places_[i], &adapters_[i]);
  weights.set_adapter_rank(options_.rank);
}

void LoraAdapters::remove(Weights& weights) const noexcept {
  for (const LinearPlace& place : places_) weights.set_adapter(place, nullptr);
  weights.set_adapter_rank(0);
}

const std::shared_ptr<LoraAdapters>& attached_lora(const DecoderOnlyTransformer& model) {
  if (!model.lora()) fail(Status::invalid_state, "the model has no adapters");
  return model.lora();
}

void attach_lora(ModelChange& change, const LoraOptions& options) {
  change.check_unadapted();
  const auto lora = std::make_shared<LoraAdapters>(change.weights(), options, change.model().account());
  lora->draw();
  change.set_lora(lora);
}

void detach_lora(ModelChange& change) {
  attached_lora(change.model());
  change.set_lora(nullptr);
}

void merge_lora(ModelChange& change) {
  const std::shared_ptr<LoraAdapters> lora = attached_lora(change.model());
  Weights& weights = change.weights();
  check_mergeable(weights, *lora);
  Merge merge(weights, *lora, change.model().account());
  merge.run([&](size_t index, uint32_t first, uint32_t count, const float* values) {
    const ParameterInfo& p = weights.parameters()[index];
    for (uint32_t r = 0; r < count; r++)
      if (!weights.device().kernels->all_finite(values + size_t(r) * p.columns, p.columns))
        fail(Status::non_finite, "row %u of %s is not finite with its adapter", first + r, p.name.c_str());
  });
  change.widen();
  merge.run([&](size_t index, uint32_t first, uint32_t count, const float* values) {
    weights.set_rows(index, first, count, reinterpret_cast<const std::byte*>(values));
  });
  change.finish_merge();
}

}  // namespace riftco
