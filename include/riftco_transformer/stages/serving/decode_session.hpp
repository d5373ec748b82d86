// One sequence, token by token: logits in your hands.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "riftco/session.h"
#include "riftco_transformer/stages/serving/kv_cache.hpp"

namespace riftco_transformer::stages::serving {

// A call that throws has changed nothing. One thread at a time; different sessions run at the same time.
class DecodeSession {
 public:
  // With a cache of its own for one full context. `cancel` is looked at by every step.
  explicit DecodeSession(const artifacts::Model& model, KvCacheKind kind = KvCacheKind::Paged,
                         std::uint64_t block_size = 16, std::uint64_t maximum_context = 0,
                         const CancelFlag* cancel = nullptr, KvElement element = KvElement::F32) {
    auto options = detail::defaults<rt_decode_session_options>(rt_decode_session_options_init);
    options.kind = static_cast<std::int32_t>(kind);
    options.block_size = kind == KvCacheKind::Paged ? block_size : 0;
    options.maximum_context = maximum_context;
    options.element_type = static_cast<std::int32_t>(element);
    create(model, options, cancel);
  }

  // With pages of a factory.
  DecodeSession(const artifacts::Model& model, const KeyValueCacheFactory& factory,
                const CancelFlag* cancel = nullptr) {
    auto options = detail::defaults<rt_decode_session_options>(rt_decode_session_options_init);
    options.factory = factory.get();
    create(model, options, cancel);
  }

  // What save() wrote, with pages of a factory or, without one, of a paged cache of its own.
  static DecodeSession load(const artifacts::Model& model, std::string_view path,
                            const KeyValueCacheFactory* factory = nullptr) {
    auto options = detail::defaults<rt_decode_session_options>(rt_decode_session_options_init);
    options.factory = factory ? factory->get() : nullptr;
    return DecodeSession(
        detail::make<Handle>(rt_model_decode_session_load, model.get(), path.data(), path.size(), &options),
        model.config().vocabulary_size, model.config().width);
  }

  // Writes a file, whole or not at all.
  void save(std::string_view path) const {
    detail::check(rt_decode_session_save(get(), path.data(), path.size()));
  }

  // Decodes one token and gives the logits of the next one, [vocabulary_size].
  std::vector<float> step(std::uint32_t token) {
    std::vector<float> logits(vocabulary_size_);
    step(token, logits);
    return logits;
  }
  void step(std::uint32_t token, std::span<float> logits) {
    std::uint64_t required = 0;
    detail::check(rt_decode_session_step(get(), token, logits.data(), logits.size(), &required));
  }

  // Decodes all tokens or none and gives the logits after the last.
  std::vector<float> prefill(std::span<const std::uint32_t> tokens) {
    std::vector<float> logits(vocabulary_size_);
    prefill(tokens, logits);
    return logits;
  }
  void prefill(std::span<const std::uint32_t> tokens, std::span<float> logits) {
    std::uint64_t required = 0;
    detail::check(rt_decode_session_prefill(get(), tokens.data(), tokens.size(), logits.data(), logits.size(),
                                            &required));
  }

  // As prefill, and gives the final hidden states (after the final norm) of tokens [first, tokens.size()), [rows, width].
  std::vector<float> hidden_states(std::span<const std::uint32_t> tokens, std::uint64_t first = 0) {
    std::vector<float> states(first < tokens.size() ? (tokens.size() - first) * width_ : 0);
    std::uint64_t required = 0;
    detail::check(rt_decode_session_hidden_states(get(), tokens.data(), tokens.size(), first, states.data(),
                                                  states.size(), &required));
    return states;
  }

  rt_decode_session_usage usage() const {
    rt_decode_session_usage usage{};
    usage.struct_size = sizeof usage;
    detail::check(rt_decode_session_get_usage(get(), &usage));
    return usage;
  }

  void reset() { detail::check(rt_decode_session_reset(get())); }
  void truncate(std::uint64_t new_size) { detail::check(rt_decode_session_truncate(get(), new_size)); }

  // A second session with the same tokens; pages are shared until one of them writes.
  DecodeSession fork() const {
    return DecodeSession(detail::make<Handle>(rt_decode_session_fork, get()), vocabulary_size_, width_);
  }

  std::uint64_t size() const { return number<std::uint64_t>(rt_decode_session_size); }
  std::uint64_t capacity() const { return number<std::uint64_t>(rt_decode_session_capacity); }
  std::uint64_t block_size() const { return number<std::uint64_t>(rt_decode_session_block_size); }
  KvCacheKind cache_kind() const { return KvCacheKind(number<std::int32_t>(rt_decode_session_cache_kind)); }

  rt_decode_session* get() const noexcept { return handle_.get(); }

 private:
  using Handle = detail::Owned<rt_decode_session, rt_decode_session_release>;

  DecodeSession(Handle handle, std::uint32_t vocabulary_size, std::uint32_t width)
      : handle_(std::move(handle)), vocabulary_size_(vocabulary_size), width_(width) {}

  void create(const artifacts::Model& model, rt_decode_session_options& options, const CancelFlag* cancel) {
    options.cancel = cancel ? cancel->get() : nullptr;
    handle_ = detail::make<Handle>(rt_model_decode_session_create, model.get(), &options);
    vocabulary_size_ = model.config().vocabulary_size;
    width_ = model.config().width;
  }

  template <class Number>
  Number number(rt_status (*query)(const rt_decode_session*, Number*)) const {
    Number value = 0;
    detail::check(query(get(), &value));
    return value;
  }

  Handle handle_;
  std::uint32_t vocabulary_size_ = 0, width_ = 0;
};

// One token for each of several sessions of one model as one batch, all or none; logits [sessions.size(),
// vocabulary_size].
inline void step_many(std::span<DecodeSession* const> sessions, std::span<const std::uint32_t> tokens,
                      std::span<float> logits) {
  if (sessions.size() != tokens.size())
    throw Error(RT_INVALID_ARGUMENT, "step_many: one token for each session");
  std::vector<rt_decode_session*> handles(sessions.size());
  std::transform(sessions.begin(), sessions.end(), handles.begin(),
                 [](const DecodeSession* session) { return session ? session->get() : nullptr; });
  std::uint64_t required = 0;
  detail::check(rt_decode_session_step_many(handles.data(), tokens.data(), handles.size(), logits.data(),
                                            logits.size(), &required));
}

}  // namespace riftco_transformer::stages::serving
