// What the handles of the C ABI hold. Each owns or shares its object, and objects share what they need: any
// order of release is right.
#pragma once
#include <memory>
#include <type_traits>

#include "base/cancel.h"
#include "capi/guard.h"
#include "model/transformer.h"
#include "riftco/riftco.h"
#include "serve/decode_session.h"
#include "serve/generation.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"
#include "train/trainer.h"

struct rt_cancel : riftco::capi::Handle<rt_cancel> {
  static constexpr char kKind[] = "cancel";
  riftco::CancelFlag flag;
};

struct rt_tokenizer : riftco::capi::Handle<rt_tokenizer> {
  static constexpr char kKind[] = "tokenizer";
  explicit rt_tokenizer(std::shared_ptr<const riftco::Tokenizer> tokenizer) : object(std::move(tokenizer)) {}
  const std::shared_ptr<const riftco::Tokenizer> object;
};

struct rt_stream_decoder : riftco::capi::Handle<rt_stream_decoder> {
  static constexpr char kKind[] = "stream decoder";
  rt_stream_decoder(std::shared_ptr<const riftco::Tokenizer> tokenizer, bool skip_special)
      : object(std::move(tokenizer), skip_special) {}
  riftco::StreamDecoder object;
};

struct rt_model : riftco::capi::Handle<rt_model> {
  static constexpr char kKind[] = "model";
  explicit rt_model(std::shared_ptr<riftco::DecoderOnlyTransformer> model) : object(std::move(model)) {}
  const std::shared_ptr<riftco::DecoderOnlyTransformer> object;
};

struct rt_kv_cache_factory : riftco::capi::Handle<rt_kv_cache_factory> {
  static constexpr char kKind[] = "cache factory";
  explicit rt_kv_cache_factory(std::shared_ptr<riftco::KeyValueCacheFactory> factory)
      : object(std::move(factory)) {}
  const std::shared_ptr<riftco::KeyValueCacheFactory> object;
};

struct rt_decode_session : riftco::capi::Handle<rt_decode_session> {
  static constexpr char kKind[] = "decode session";
  explicit rt_decode_session(std::unique_ptr<riftco::DecodeSession> session) : object(std::move(session)) {}
  const std::unique_ptr<riftco::DecodeSession> object;
};

struct rt_generator : riftco::capi::Handle<rt_generator> {
  static constexpr char kKind[] = "generator";
  explicit rt_generator(std::unique_ptr<riftco::Generator> generator) : object(std::move(generator)) {}
  const std::unique_ptr<riftco::Generator> object;
};

struct rt_trainer : riftco::capi::Handle<rt_trainer> {
  static constexpr char kKind[] = "trainer";
  rt_trainer(std::shared_ptr<riftco::DecoderOnlyTransformer> model, const riftco::TrainerOptions& options)
      : object(std::move(model), options) {}
  riftco::Trainer object;
};

namespace riftco::capi {

// The object of an optional handle, or null.
template <class H>
auto optional_object(H* handle, const char* name) -> std::remove_const_t<decltype(handle->object)> {
  if (!handle) return nullptr;
  return checked(handle, name).object;
}

// The flag of an optional rt_cancel.
inline const CancelFlag* cancel_flag(const rt_cancel* cancel, const char* name) {
  return cancel ? &checked(cancel, name).flag : nullptr;
}

}  // namespace riftco::capi
