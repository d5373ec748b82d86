// A decode session: one sequence of one model, over a transactional cache. A call that fails leaves it as it
// was.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/cancel.h"
#include "model/transformer.h"
#include "serve/kv_cache.h"

namespace riftco {

struct DecodeSessionOptions {
  KvCacheKind kind = KvCacheKind::paged;
  uint64_t page_size = kDefaultPageSize;  // contiguous: the default, 0 or the maximum context
  uint64_t maximum_context = 0;           // 0: the model's, or the factory's where one is given
  DType element = DType::f32;             // of keys and values: f32, f16 or bf16
  std::shared_ptr<KeyValueCacheFactory> factory =
      nullptr;                         // null: one of the session's own, of one full context
  const CancelFlag* cancel = nullptr;  // looked at by every step
};

struct KvCacheFactoryOptions {
  KvCacheKind kind = KvCacheKind::paged;
  uint64_t page_size = kDefaultPageSize;  // contiguous: the default, 0 or the maximum context
  uint64_t page_count = 0;                // 0: one full context; contiguous: 0
  uint64_t maximum_context = 0;           // 0: the model's
  DType element = DType::f32;             // of keys and values: f32, f16 or bf16
  uint64_t memory_limit = UINT64_MAX;     // bytes of pages
};

std::shared_ptr<KeyValueCacheFactory> make_kv_cache_factory(const DecoderOnlyTransformer& model,
                                                            const KvCacheFactoryOptions& options);

// Not thread-safe; different sessions of one model are independent.
class DecodeSession {
 public:
  DecodeSession(std::shared_ptr<const DecoderOnlyTransformer> model, const DecodeSessionOptions& options);

  const DecoderOnlyTransformer& model() const noexcept { return *hold_.model(); }
  uint32_t size() const noexcept { return cache_->length(); }
  uint32_t capacity() const noexcept { return cache_->capacity(); }
  KvCacheKind cache_kind() const noexcept { return factory_->kind(); }
  uint32_t block_size() const noexcept { return factory_->page_size(); }
  const KeyValueCache& cache() const noexcept { return *cache_; }
  const KeyValueCacheFactory& factory() const noexcept { return *factory_; }

  // Decodes one token at position size(). `logits`: room for at least [vocabulary]; what a failed call left
  // there is undefined, here and below.
  void step(uint32_t token, std::span<float> logits) { prefill({&token, 1}, logits); }

  // Decodes all tokens or none; the logits are those after the last.
  void prefill(std::span<const uint32_t> tokens, std::span<float> logits);

  // As prefill, and gives the final hidden states (after the final norm) of tokens [first, tokens.size()), [rows, width].
  void hidden_states(std::span<const uint32_t> tokens, uint64_t first, std::span<float> states);

  // One token for each of different sessions of one model as one batch, all or none; logits [sessions,
  // vocabulary]. The cancel flag of any of them cancels it.
  static void step_many(std::span<DecodeSession* const> sessions, std::span<const uint32_t> tokens,
                        std::span<float> logits);

  // Opens the next `tokens` positions, lets fill(view) write their keys and values into the pages, and makes them visible;
  // where it throws, nothing changes.
  template <class Fill>
  void restore(uint64_t tokens, Fill&& fill) {
    KvTransaction transaction(*cache_, tokens);
    fill(cache_->view());
    cache_->mark_written();
    transaction.commit();
  }

  // Room for a list of sessions, kept so that batches in steady state allocate nothing.
  std::vector<DecodeSession*>& batch_scratch() noexcept { return batch_scratch_; }

  void reset() noexcept { cache_->reset(); }
  void truncate(uint64_t size) { cache_->truncate(size); }
  std::unique_ptr<DecodeSession> fork() const;

 private:
  DecodeSession(const DecodeSession& other, std::unique_ptr<KeyValueCache> cache);
  static void run_batch(std::span<DecodeSession* const> sessions, std::span<const uint32_t> tokens,
                        std::span<float> logits);

  SessionHold hold_;
  std::shared_ptr<KeyValueCacheFactory> factory_;
  std::unique_ptr<KeyValueCache> cache_;
  const CancelFlag* cancel_;
  bool in_batch_ = false;  // used within step_many to find a session that is there twice
  std::vector<DecodeSession*> batch_scratch_;
};

// Runs tokens through a cache as one transaction. `logits`: [vocabulary] after the last token.
void forward_tokens(const DecoderOnlyTransformer& model, KeyValueCache& cache,
                    std::span<const uint32_t> tokens, const CancelFlag* cancel, float* logits);

// The same with logits of every token, [tokens, vocabulary].
void forward_each(const DecoderOnlyTransformer& model, KeyValueCache& cache, std::span<const uint32_t> tokens,
                  const CancelFlag* cancel, float* logits);

// Logits of a whole sequence, [tokens, vocabulary], written straight to `logits` (at least that large).
void sequence_logits(const std::shared_ptr<const DecoderOnlyTransformer>& model,
                     std::span<const uint32_t> tokens, const CancelFlag* cancel, std::span<float> logits);

// The same in pieces, for whoever does not want to keep them: see(i, logits) for token i, in order.
void each_logits(const std::shared_ptr<const DecoderOnlyTransformer>& model, std::span<const uint32_t> tokens,
                 const CancelFlag* cancel,
                 const std::function<void(size_t token, std::span<const float> logits)>& see);

}  // namespace riftco
