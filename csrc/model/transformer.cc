#include "model/transformer.h"

#include <algorithm>
#include <cinttypes>
#include <vector>

#include "base/error.h"
#include "io/checksum.h"

namespace riftco {

DecoderOnlyTransformer::DecoderOnlyTransformer(std::unique_ptr<Weights> weights,
                                               std::shared_ptr<const Tokenizer> tokenizer,
                                               std::shared_ptr<MemoryAccount> account, uint32_t threads,
                                               ModelMetadata metadata)
    : weights_(std::move(weights)),
      tokenizer_(std::move(tokenizer)),
      account_(std::move(account)),
      metadata_(std::move(metadata)),
      executor_(std::make_unique<StepExecutor>(weights_->device(), std::make_shared<ThreadPool>(threads),
                                               account_)) {}

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

std::string DecoderOnlyTransformer::fingerprint() const {
  const auto reading_lock = reading();
  const std::lock_guard lock(fingerprint_mutex_);
  if (fingerprint_.empty() || fingerprint_epoch_ != epoch_) {
    Checksum checksum;
    checksum.add(config_to_json(config()));
    std::vector<std::byte> rows;
    for (size_t i = 0; i < weights_->parameters().size(); ++i) {
      const ParameterInfo& p = weights_->parameters()[i];
      const size_t bytes = row_bytes(p.type, p.columns);
      const uint32_t piece = uint32_t(std::clamp<size_t>((size_t(1) << 20) / bytes, 1, p.rows));
      checksum.add(p.name);
      checksum.add(uint64_t(p.type));
      for (uint32_t row = 0; row < p.rows; row += piece) {
        const uint32_t count = std::min(piece, p.rows - row);
        rows.resize(count * bytes);
        weights_->get_rows(i, row, count, rows.data());
        checksum.add(rows);
      }
    }
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

void DecoderOnlyTransformer::check_token(uint32_t token) const {
  if (token >= config().vocabulary_size)
    fail(Status::out_of_range, "token %u is not below the vocabulary size %u", token,
         config().vocabulary_size);
}

}  // namespace riftco
