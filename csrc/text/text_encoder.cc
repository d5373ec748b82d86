#include "text/text_encoder.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "text/utf8.h"

namespace riftco {
namespace {

constexpr size_t kMaxTextBytes = size_t(1) << 31;  // places in a piece and in the output are 32 bits
constexpr size_t kBytesPerCancelCheck = 64 * 1024;
constexpr size_t kLongestSeen = 32;  // longer pieces seldom come twice

}  // namespace

TextEncoder::TextEncoder(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options)
    : t_(tokenizer),
      text_(text),
      options_(options),
      pieces_(tokenizer.pre_tokenizer_, text.size()),
      merger_(tokenizer.merges_, options.cancel) {
  if (text.size() > kMaxTextBytes)
    fail(Status::overflow, "a text of %zu bytes; one call encodes at most %zu", text.size(), kMaxTextBytes);
  seen_.resize(std::bit_floor(std::clamp<size_t>(text.size() / 32, 1, 8192)));
}

std::vector<uint32_t> TextEncoder::run() {
  out_.reserve(text_.size() / 3 + t_.prefix_.size() + t_.suffix_.size() + 8);
  if (options_.add_special) out_ = t_.prefix_;
  const auto on_token = [&](uint32_t id) { out_.push_back(id); };
  const bool parse = options_.parse_special;
  t_.added_first_.split(
      text_, parse,
      [&](std::string_view between) {
        t_.added_second_.split(
            between, parse, [&](std::string_view rest) { encode_text(rest); }, on_token);
      },
      on_token);
  if (options_.add_special) out_.insert(out_.end(), t_.suffix_.begin(), t_.suffix_.end());
  return std::move(out_);
}

void TextEncoder::encode_text(std::string_view text) {
  while (!text.empty()) {
    const size_t valid = valid_utf8_prefix(text);
    encode_stretch(text.substr(0, valid));
    if (valid < text.size()) encode_piece(text.substr(valid, 1));  // not UTF-8: a piece of its own
    text.remove_prefix(std::min(valid + 1, text.size()));
  }
}

void TextEncoder::encode_stretch(std::string_view text) {
  pieces_.start(text);
  for (std::string_view piece; pieces_.next(piece);) encode_piece(piece);
}

void TextEncoder::encode_piece(std::string_view piece) {
  count_bytes(piece.size());
  if (piece.size() > kLongestSeen) return encode_new_piece(piece);
  Seen& seen = seen_[XXH3_64bits(piece.data(), piece.size()) & (seen_.size() - 1)];
  const size_t begin = out_.size();
  if (seen.piece == piece) {
    out_.resize(begin + seen.count);
    std::copy_n(out_.begin() + seen.begin, seen.count, out_.begin() + begin);
  } else {
    encode_new_piece(piece);
    seen = {piece, uint32_t(begin), uint32_t(out_.size() - begin)};
  }
}

void TextEncoder::encode_new_piece(std::string_view piece) {
  if (t_.ignore_merges_) {
    const uint32_t id = t_.vocabulary_.find_model_token(piece);
    if (id != kNoToken && !(t_.vocabulary_.flags(id) & kSpecialToken)) return out_.push_back(id);
  }
  const size_t begin = out_.size();
  bool after_missing = false;
  for (size_t i = 0; i < piece.size(); i++) {
    const uint8_t byte = static_cast<uint8_t>(piece[i]);
    const bool is_missing = t_.byte_ids_[byte] == kNoToken;
    if (!is_missing) {
      out_.push_back(t_.byte_ids_[byte]);
    } else if (options_.strict) {
      fail(Status::invalid_argument, "the vocabulary has no token for byte 0x%02x at offset %zu of the text",
           byte, size_t(piece.data() + i - text_.data()));
    } else if (t_.missing_byte_ && !(t_.fuse_missing_bytes_ && after_missing)) {
      out_.push_back(*t_.missing_byte_);
    }
    after_missing = is_missing;
  }
  if (t_.merges_.size() != 0) out_.resize(begin + merger_.merge(std::span(out_).subspan(begin)));
}

void TextEncoder::count_bytes(size_t bytes) {
  if (bytes_to_check_ < bytes) {
    check_cancel(options_.cancel, "encoding");
    bytes_to_check_ = kBytesPerCancelCheck;
  }
  bytes_to_check_ -= std::min(bytes, bytes_to_check_);
}

}  // namespace riftco
