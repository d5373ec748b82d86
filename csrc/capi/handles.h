// What the handles of the C ABI hold. Each owns or shares its object, and objects share what they need: any order of release
// is right.
#pragma once
#include <memory>

#include "base/cancel.h"
#include "capi/guard.h"
#include "riftco/tokenizer.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

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

namespace riftco::capi {

// The flag of an optional rt_cancel.
inline const CancelFlag* cancel_flag(const rt_cancel* cancel, const char* name) {
  return cancel ? &checked(cancel, name).flag : nullptr;
}

}  // namespace riftco::capi
