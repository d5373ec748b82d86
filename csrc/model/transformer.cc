#include "model/transformer.h"

#include "base/error.h"

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

void DecoderOnlyTransformer::check_token(uint32_t token) const {
  if (token >= config().vocabulary_size)
    fail(Status::out_of_range, "token %u is not below the vocabulary size %u", token,
         config().vocabulary_size);
}

}  // namespace riftco
