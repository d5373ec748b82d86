#include "text/score_merger.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace riftco {

std::vector<uint32_t> score_places(std::span<const float> scores) {
  std::vector<float> sorted(scores.begin(), scores.end());
  if (std::ranges::any_of(sorted, [](float score) { return std::isnan(score); }))
    fail(Status::corrupt_data, "a token's score is not a number");
  std::ranges::sort(sorted, std::greater<>());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  std::vector<uint32_t> places;
  places.reserve(scores.size());
  for (const float score : scores)
    places.push_back(uint32_t(std::ranges::lower_bound(sorted, score, std::greater<>()) - sorted.begin()));
  return places;
}

void ScoreMerger::add_pair(std::string_view text, uint32_t at) {
  const Symbol& left = symbols_[at];
  const uint32_t size = left.size + symbols_[left.next].size;
  const uint32_t token = vocabulary_.find_model_token(text.substr(left.begin, size));
  if (token != kNoToken) heap_.push_back({places_[token], at, size});
}

const std::vector<std::string_view>& ScoreMerger::merge(std::string_view text) {
  symbols_.clear();
  heap_.clear();
  result_.clear();
  for (size_t at = 0; at < text.size();) {
    const uint32_t size = std::max<uint32_t>(1, first_character(text.substr(at)).length);
    const uint32_t i = uint32_t(symbols_.size());
    symbols_.push_back({uint32_t(at), size, i - 1, i + 1});
    at += size;
  }
  if (symbols_.empty()) return result_;
  symbols_.front().previous = symbols_.back().next = kEnd;
  for (uint32_t i = 0; i + 1 < symbols_.size(); i++) add_pair(text, i);
  std::ranges::make_heap(heap_, std::greater<>());

  const auto push = [&](uint32_t at) {
    const size_t before = heap_.size();
    add_pair(text, at);
    if (heap_.size() != before) std::ranges::push_heap(heap_, std::greater<>());
  };
  while (!heap_.empty()) {
    if (++steps_ % 65536 == 0) check_cancel(cancel_, "encoding");
    std::ranges::pop_heap(heap_, std::greater<>());
    const Candidate best = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[best.at];
    // Overtaken when either symbol has changed: the text begins where it did, so its size tells.
    if (left.size == 0 || left.next == kEnd || left.size + symbols_[left.next].size != best.size) continue;
    Symbol& right = symbols_[left.next];
    left.size = best.size;
    left.next = right.next;
    right.size = 0;
    if (left.next != kEnd) {
      symbols_[left.next].previous = best.at;
      push(best.at);
    }
    if (left.previous != kEnd) push(left.previous);
  }
  for (const Symbol& symbol : symbols_)
    if (symbol.size != 0) result_.push_back(text.substr(symbol.begin, symbol.size));
  return result_;
}

}  // namespace riftco
