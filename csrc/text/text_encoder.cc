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
      merger_(tokenizer.merges_, options.cancel),
      score_merger_(tokenizer.vocabulary_, tokenizer.score_places_, options.cancel) {
  if (text.size() > kMaxTextBytes)
    fail(Status::overflow, "a text of %zu bytes; one call encodes at most %zu", text.size(), kMaxTextBytes);
  uint64_t end = 0;
  for (const PlainRange& range : options.plain) {
    if (range.begin < end || range.end <= range.begin || range.end > text.size())
      fail(Status::out_of_range,
           "the plain range %llu to %llu is empty, out of order or behind the text's %zu bytes",
           static_cast<unsigned long long>(range.begin), static_cast<unsigned long long>(range.end),
           text.size());
    end = range.end;
  }
  seen_.resize(std::bit_floor(std::clamp<size_t>(text.size() / 32, 1, 8192)));
}

std::vector<uint32_t> TextEncoder::run() {
  const TokenizerSpec& spec = t_.spec_;
  out_.reserve(text_.size() / 3 + spec.prefix.size() + spec.suffix.size() + 8);
  if (options_.add_special) out_ = spec.prefix;
  t_.added_first_.split(
      text_, [&](size_t begin, size_t end) { return is_plain(begin, end); },
      [&](std::string_view between) { encode_fragment(between); }, [&](uint32_t id) { out_.push_back(id); });
  if (options_.add_special) out_.insert(out_.end(), spec.suffix.begin(), spec.suffix.end());
  return std::move(out_);
}

void TextEncoder::encode_fragment(std::string_view text) {
  const bool is_first = text.data() == text_.data();
  // Places change when text is normalised: then none of it may be plain.
  const size_t place = size_t(text.data() - text_.data());
  const bool all_plain = is_plain(place, place + text.size());
  if (!t_.spec_.normalizer.empty()) text = keep(normalize(t_.spec_.normalizer, text));
  t_.added_second_.split(
      text, [&](size_t, size_t) { return all_plain; },
      [&](std::string_view rest) { encode_rest(rest, is_first && rest.data() == text.data()); },
      [&](uint32_t id) { out_.push_back(id); });
}

void TextEncoder::encode_rest(std::string_view text, bool is_first) {
  const SpacePrefix prefix = t_.spec_.space_prefix;
  if (prefix == SpacePrefix::none) return encode_text(text);
  std::string marked = replace_all(text, " ", kSpaceMark);
  if ((prefix == SpacePrefix::every || (prefix == SpacePrefix::first && is_first)) &&
      !marked.starts_with(kSpaceMark))
    marked.insert(0, kSpaceMark);
  encode_text(keep(std::move(marked)));
}

// Whether special tokens in [begin, end) are text: by option, or because a plain range reaches into it.
bool TextEncoder::is_plain(size_t begin, size_t end) const noexcept {
  if (!options_.parse_special) return true;
  const auto range = std::ranges::upper_bound(options_.plain, begin, std::less<>(), &PlainRange::end);
  return range != options_.plain.end() && range->begin < end;
}

std::string_view TextEncoder::keep(std::string text) { return kept_.emplace_back(std::move(text)); }

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
  if (t_.spec_.ignore_merges) {
    const uint32_t id = t_.vocabulary_.find_model_token(piece);
    if (id != kNoToken && !(t_.vocabulary_.flags(id) & kSpecialToken)) return out_.push_back(id);
  }
  if (!t_.score_places_.empty()) return encode_by_score(piece);
  const size_t begin = out_.size();
  if (t_.spec_.spelling == Spelling::byte_level) {
    encode_bytes(piece);
  } else {
    encode_characters(piece);
  }
  if (t_.merges_.size() != 0) out_.resize(begin + merger_.merge(std::span(out_).subspan(begin)));
}

void TextEncoder::encode_bytes(std::string_view piece) {
  bool after_missing = false;
  for (size_t i = 0; i < piece.size(); i++) {
    const uint32_t id = t_.byte_ids_[static_cast<uint8_t>(piece[i])];
    if (id == kNoToken) {
      add_missing(piece.substr(i, 1), after_missing);
    } else {
      out_.push_back(id);
      after_missing = false;
    }
  }
}

void TextEncoder::encode_characters(std::string_view piece) {
  bool after_missing = false;
  while (!piece.empty()) {
    const size_t size = std::max<size_t>(1, first_character(piece).length);
    encode_character(piece.substr(0, size), after_missing);
    piece.remove_prefix(size);
  }
}

void TextEncoder::encode_by_score(std::string_view piece) {
  bool after_missing = false;
  for (const std::string_view symbol : score_merger_.merge(piece)) encode_character(symbol, after_missing);
}

// A character, or what it became part of: a token, else the tokens of its bytes.
void TextEncoder::encode_character(std::string_view character, bool& after_missing) {
  if (const uint32_t id = t_.vocabulary_.find_model_token(character); id != kNoToken) {
    out_.push_back(id);
    after_missing = false;
    return;
  }
  const size_t begin = out_.size();
  for (const char byte : character) {
    const uint32_t id = t_.byte_tokens_[static_cast<uint8_t>(byte)];
    if (id == kNoToken) {
      out_.resize(begin);
      return add_missing(character, after_missing);
    }
    out_.push_back(id);
  }
  after_missing = false;
}

void TextEncoder::add_missing(std::string_view bytes, bool& after_missing) {
  if (options_.strict) {
    const bool is_as_given = bytes.data() >= text_.data() && bytes.data() < text_.data() + text_.size();
    fail(
        Status::invalid_argument, "the vocabulary has no token for %s%s", quoted(std::string(bytes)).c_str(),
        is_as_given ? format(" at offset %zu of the text", size_t(bytes.data() - text_.data())).c_str() : "");
  }
  if (t_.spec_.missing_byte && !(t_.spec_.fuse_missing_bytes && after_missing))
    out_.push_back(*t_.spec_.missing_byte);
  after_missing = true;
}

void TextEncoder::count_bytes(size_t bytes) {
  if (bytes_to_check_ < bytes) {
    check_cancel(options_.cancel, "encoding");
    bytes_to_check_ = kBytesPerCancelCheck;
  }
  bytes_to_check_ -= std::min(bytes, bytes_to_check_);
}

}  // namespace riftco
