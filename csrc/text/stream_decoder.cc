#include "text/stream_decoder.h"

#include "text/utf8.h"

namespace riftco {

std::string_view StreamDecoder::push(uint32_t token) {
  std::string_view bytes = tokenizer_->token_bytes(token);
  if (skip_special_ && tokenizer_->is_special(token)) bytes = {};
  const bool begins = at_start_ && !bytes.empty();
  if (begins && tokenizer_->strips_first_space() && bytes[0] == ' ') bytes.remove_prefix(1);
  buffer_.reserve(held_bytes() + bytes.size());  // the only step that may fail
  buffer_.erase(0, given_);
  buffer_.append(bytes);
  at_start_ &= !begins;
  given_ = buffer_.size() - incomplete_tail(buffer_);
  return std::string_view(buffer_).substr(0, given_);
}

std::string_view StreamDecoder::flush() {
  buffer_.erase(0, given_);
  given_ = buffer_.size();
  at_start_ = true;
  return buffer_;
}

}  // namespace riftco
