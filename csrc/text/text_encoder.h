// One call of Tokenizer::encode: added tokens, then pieces, then merges.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "text/score_merger.h"
#include "text/tokenizer.h"

namespace riftco {

class TextEncoder {
 public:
  TextEncoder(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options);
  std::vector<uint32_t> run();

 private:
  void encode_fragment(std::string_view text);             // between added tokens of the first pass
  void encode_rest(std::string_view text, bool is_first);  // between all of them, normalised
  void encode_text(std::string_view text);
  void encode_stretch(std::string_view text);  // UTF-8
  void encode_piece(std::string_view piece);
  void encode_new_piece(std::string_view piece);
  void encode_bytes(std::string_view piece);
  void encode_characters(std::string_view piece);
  void encode_by_score(std::string_view piece);
  void encode_character(std::string_view character, bool& after_missing);
  void add_missing(std::string_view bytes, bool& after_missing);
  bool is_plain(size_t begin, size_t end) const noexcept;
  void count_bytes(size_t bytes);
  std::string_view keep(std::string text);  // pieces stay valid to the end

  // A piece seen before in this text and where its ids lie in out_. A later piece of the same slot replaces
  // it.
  struct Seen {
    std::string_view piece;
    uint32_t begin = 0, count = 0;
  };

  const Tokenizer& t_;
  const std::string_view text_;
  const EncodeOptions& options_;
  std::vector<uint32_t> out_;
  Pieces pieces_;
  BpeMerger merger_;
  ScoreMerger score_merger_;
  std::deque<std::string> kept_;
  std::vector<Seen> seen_;     // direct mapped, a power of two
  size_t bytes_to_check_ = 0;  // until the cancel flag is looked at again
};

}  // namespace riftco
