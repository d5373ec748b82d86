// Tokens to text, one at a time: bytes come out as soon as they are complete UTF-8.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace riftco {

// Holds back at most three bytes: a tail that further bytes may complete. Bytes that can never become UTF-8
// pass through at once, so what comes out, put together, is exactly Tokenizer::decode of the tokens.
class StreamDecoder {
 public:
  // continues: the tokens go on with a text, so that a space where they begin is part of it.
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = true,
                         bool continues = false)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special), at_start_(!continues) {}

  // The bytes now complete, maybe none; valid until the next call. out_of_range for an unknown id, and then
  // nothing has changed.
  std::string_view push(uint32_t token);
  // What is held back, complete or not; then a new text begins.
  std::string_view flush();
  size_t held_bytes() const noexcept { return buffer_.size() - given_; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  bool at_start_;       // of the text: nothing has come yet
  std::string buffer_;  // what push gave out last, then what is held
  size_t given_ = 0;
};

}  // namespace riftco
