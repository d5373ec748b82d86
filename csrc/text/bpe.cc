#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <string>

#include "base/error.h"
#include "text/vocabulary.h"

namespace riftco {

MergeTable::MergeTable(const Vocabulary& vocabulary, const std::vector<MergePair>& merges)
    : seed_(hash_seed()) {
  if (merges.size() > kMaxVocabulary)
    fail(Status::corrupt_data, "%zu merges; at most %u are possible", merges.size(), kMaxVocabulary);
  merges_.reserve(merges.size());
  slots_.assign(std::bit_ceil(2 * merges.size() + 1), kEmptySlot);
  mask_ = slots_.size() - 1;
  std::string joined;
  for (const auto [left, right] : merges) {
    const uint32_t rank = size();
    if (left >= vocabulary.size() || right >= vocabulary.size())
      fail(Status::corrupt_data, "merge %u names the tokens %u and %u of a vocabulary of %u", rank, left,
           right, vocabulary.size());
    joined.assign(vocabulary.key(left)).append(vocabulary.key(right));
    const uint32_t result = vocabulary.find_model_token(joined);
    if (result == kNoToken)
      fail(Status::corrupt_data, "merge %u makes %s, which the vocabulary lacks", rank,
           quoted(joined).c_str());
    merges_.push_back({left, right, result});

    const uint64_t hashed = hash(left, right);
    size_t at = hashed & mask_;
    while (slots_[at] != kEmptySlot && pair(slot_number(slots_[at])) != MergePair{left, right})
      at = (at + 1) & mask_;
    slots_[at] = slot_tag(hashed) | rank;
  }
}

void BpeMerger::add_pair(std::span<const uint32_t> ids, uint32_t at) {
  const uint32_t rank = table_.rank(ids[at], ids[links_[at].next]);
  if (rank != MergeTable::kNone) heap_.push_back(key(rank, at));
}

size_t BpeMerger::merge(std::span<uint32_t> ids) {
  constexpr uint32_t kGone = UINT32_MAX;  // the right half of a joined pair
  const uint32_t count = uint32_t(ids.size());
  if (count < 2) return count;
  links_.resize(count);
  heap_.clear();
  for (uint32_t i = 0; i < count; i++) links_[i] = {i == 0 ? kEnd : i - 1, i + 1 == count ? kEnd : i + 1};
  for (uint32_t i = 0; i + 1 < count; i++) add_pair(ids, i);
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());

  const auto push = [&](uint32_t at) {
    const size_t before = heap_.size();
    add_pair(ids, at);
    if (heap_.size() != before) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  };
  size_t left = count;
  while (!heap_.empty()) {
    if (++steps_ % 65536 == 0) check_cancel(cancel_, "encoding");
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint32_t rank = uint32_t(heap_.back() >> 32), at = uint32_t(heap_.back());
    heap_.pop_back();
    const uint32_t next = links_[at].next;
    const MergePair pair = table_.pair(rank);
    if (ids[at] != pair.left || next == kEnd || ids[next] != pair.right) continue;  // overtaken
    ids[at] = table_.result(rank);
    ids[next] = kGone;
    links_[at].next = links_[next].next;
    left--;
    if (links_[at].next != kEnd) {
      links_[links_[at].next].previous = at;
      push(at);
    }
    if (links_[at].previous != kEnd) push(links_[at].previous);
  }
  if (left != count) (void)std::remove(ids.begin(), ids.end(), kGone);
  return left;
}

}  // namespace riftco
