#include "text/stream_decoder.h"

#include "text/utf8.h"

namespace riftco {

std::string_view StreamDecoder::push(uint32_t token) {
  const std::string_view bytes = tokenizer_->token_bytes(token);
  const bool skipped = skip_special_ && tokenizer_->is_special(token);
  buffer_.reserve(held_bytes() + bytes.size());  // the only step that may fail
  buffer_.erase(0, given_);
  if (!skipped) buffer_.append(bytes);
  given_ = buffer_.size() - incomplete_tail(buffer_);
  return std::string_view(buffer_).substr(0, given_);
}

std::string_view StreamDecoder::flush() {
  buffer_.erase(0, given_);
  given_ = buffer_.size();
  return buffer_;
}

}  // namespace riftco
