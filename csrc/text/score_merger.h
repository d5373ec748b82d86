// SentencePiece's byte-pair encoding: neighbours whose joined text is a token join, best score first, leftmost
// first among equals.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/cancel.h"

namespace riftco {

class Vocabulary;

// Places of token scores, 0 the best; equal scores share one. corrupt_data for a score that is no number.
std::vector<uint32_t> score_places(std::span<const float> scores);

// Merges pieces one after another; the scratch memory of one thread.
class ScoreMerger {
 public:
  ScoreMerger(const Vocabulary& vocabulary, std::span<const uint32_t> places, const CancelFlag* cancel)
      : vocabulary_(vocabulary), places_(places), cancel_(cancel) {}

  // Cuts UTF-8 text into symbols: tokens, and characters that are none. O(n log n).
  const std::vector<std::string_view>& merge(std::string_view text);

 private:
  static constexpr uint32_t kEnd = UINT32_MAX;
  struct Symbol {
    uint32_t begin, size;  // size 0: joined to the one before it
    uint32_t previous, next;
  };
  struct Candidate {
    uint32_t place, at, size;  // the token's place, the left symbol, bytes of both
    bool operator>(const Candidate& other) const noexcept {
      return place != other.place ? place > other.place : at > other.at;
    }
  };
  void add_pair(std::string_view text, uint32_t at);

  const Vocabulary& vocabulary_;
  const std::span<const uint32_t> places_;  // by token id
  const CancelFlag* cancel_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  std::vector<std::string_view> result_;
  uint64_t steps_ = 0;
};

}  // namespace riftco
