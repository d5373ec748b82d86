#include "model/transformer.h"

#include <algorithm>
#include <cinttypes>
#include <vector>

#include "base/error.h"
#include "core/quantise.h"
#include "io/checksum.h"
#include "model/lora.h"

namespace riftco {

DecoderOnlyTransformer::DecoderOnlyTransformer(std::unique_ptr<Weights> weights,
                                               std::shared_ptr<const Tokenizer> tokenizer,
                                               std::shared_ptr<MemoryAccount> account,
                                               std::shared_ptr<ThreadPool> threads, ModelMetadata metadata)
    : weights_(std::move(weights)),
      tokenizer_(std::move(tokenizer)),
      account_(std::move(account)),
      metadata_(std::move(metadata)),
      executor_(std::make_unique<StepExecutor>(weights_->device(), std::move(threads), account_)) {}

KvGeometry DecoderOnlyTransformer::kv_geometry(uint32_t page_size, DType element) const noexcept {
  const ModelConfig& c = config();
  return {c.layer_count, c.kv_head_count, c.head_width, page_size, element};
}

void DecoderOnlyTransformer::reserve(uint32_t longest_context) const {
  executor_->reserve(weights_->step_model(), longest_context);
}

void DecoderOnlyTransformer::run(const StepBatch& batch) const {
  executor_->run(weights_->step_model(), batch);
}

size_t DecoderOnlyTransformer::parameter_count() const noexcept {
  return weights_->parameters().size() + (lora_ ? lora_->parameters().parameters().size() : 0);
}

const ParameterInfo& DecoderOnlyTransformer::parameter(size_t index) const {
  if (index >= parameter_count())
    fail(Status::out_of_range, "parameter %zu is not below the %zu that there are", index, parameter_count());
  const size_t own = weights_->parameters().size();
  return index < own ? weights_->parameters()[index] : lora_->parameters().parameters()[index - own];
}

DecoderOnlyTransformer::Place DecoderOnlyTransformer::find(std::string_view name) const {
  for (ParameterStore* store :
       {static_cast<ParameterStore*>(weights_.get()), lora_ ? &lora_->parameters() : nullptr})
    if (const auto index = store ? store->find(name) : std::nullopt) return {store, *index};
  fail(Status::out_of_range, "the model has no parameter %s", quoted(name.data(), name.size()).c_str());
}

const ParameterInfo& DecoderOnlyTransformer::parameter(std::string_view name) const {
  const Place place = find(name);
  return place.store->parameters()[place.index];
}

void DecoderOnlyTransformer::read_parameter(std::string_view name, float* values) const {
  const Place place = find(name);
  place.store->read_floats(place.index, values);
}

namespace {

void add_parameters(Checksum& checksum, const ParameterStore& store) {
  std::vector<std::byte> rows;
  for (size_t i = 0; i < store.parameters().size(); ++i) {
    const ParameterInfo& p = store.parameters()[i];
    const size_t bytes = row_bytes(p.type, p.columns);
    const uint32_t piece = uint32_t(std::clamp<size_t>((size_t(1) << 20) / bytes, 1, p.rows));
    checksum.add(p.name);
    checksum.add(uint64_t(p.type));
    for (uint32_t row = 0; row < p.rows; row += piece) {
      const uint32_t count = std::min(piece, p.rows - row);
      rows.resize(count * bytes);
      store.get_rows(i, row, count, rows.data());
      checksum.add(rows);
    }
  }
}

}  // namespace

std::string DecoderOnlyTransformer::weights_fingerprint() const {
  const auto reading_lock = reading();
  Checksum checksum;
  checksum.add(config_to_json(config()));
  add_parameters(checksum, *weights_);
  return checksum.text();
}

std::string DecoderOnlyTransformer::fingerprint() const {
  const auto reading_lock = reading();
  const std::lock_guard lock(fingerprint_mutex_);
  if (fingerprint_.empty() || fingerprint_epoch_ != epoch_) {
    Checksum checksum;
    checksum.add(config_to_json(config()));
    add_parameters(checksum, *weights_);
    if (lora_) {
      checksum.add(__builtin_bit_cast(uint64_t, lora_->options().alpha));
      add_parameters(checksum, lora_->parameters());
    }
    if (weights_->step_model().compute == Compute::bf16) checksum.add("compute bf16");
    fingerprint_ = checksum.text();
    fingerprint_epoch_ = epoch_;
  }
  return fingerprint_;
}

ModelChange::ModelChange(DecoderOnlyTransformer& model, const char* what)
    : model_(model), lock_(model.parameters_mutex_) {
  if (const uint64_t sessions = model.session_count())
    fail(Status::invalid_state, "%s: %" PRIu64 " decode session%s of the model %s alive", what, sessions,
         sessions == 1 ? "" : "s", sessions == 1 ? "is" : "are");
}

void ModelChange::check_unadapted() const {
  if (model_.lora_) fail(Status::invalid_state, "the model has adapters already: detach or merge them first");
}

void ModelChange::set_lora(std::shared_ptr<LoraAdapters> lora) noexcept {
  if (model_.lora_) model_.lora_->remove(weights());
  model_.lora_ = std::move(lora);
  if (model_.lora_) model_.lora_->install(weights());
  commit();
}

void ModelChange::finish_merge() noexcept {
  model_.merges_++;
  set_lora(nullptr);
}

void ModelChange::widen() {
  if (!weights().widen(model_.account_)) return;
  if (model_.lora_) model_.lora_->install(weights());
  commit();
}

void ModelChange::write_parameter(std::string_view name, std::span<const float> values) {
  const auto [store, index] = model_.find(name);
  const ParameterInfo& p = store->parameters()[index];
  if (values.size() != uint64_t(p.rows) * p.columns)
    fail(Status::invalid_argument, "%s has %" PRIu64 " values, %zu are given", p.name.c_str(),
         uint64_t(p.rows) * p.columns, values.size());
  if (is_quantised(p.type))
    fail(Status::unsupported,
         "%s is %s, which cannot be written; convert the model to f32, f16 or bf16 first", p.name.c_str(),
         dtype_info(p.type).name);
  std::vector<std::byte> row(row_bytes(p.type, p.columns));
  for (const bool writes : {false, true})  // first only looks
    for (uint32_t r = 0; r < p.rows; r++) {
      quantise(p.type, values.subspan(size_t(r) * p.columns, p.columns), row.data());
      if (writes) {
        store->set_rows(index, r, 1, row.data());
      } else if (!row_is_finite(p.type, row.data(), p.columns)) {
        fail(Status::non_finite, "row %u of %s has a value that is not finite or too large for %s", r,
             p.name.c_str(), dtype_info(p.type).name);
      }
    }
  commit();
}

void DecoderOnlyTransformer::check_token(uint32_t token) const {
  if (token >= config().vocabulary_size)
    fail(Status::out_of_range, "token %u is not below the vocabulary size %u", token,
         config().vocabulary_size);
}

}  // namespace riftco
