// Byte-pair encoding proper: joins neighbouring symbols, best-ranked pair first, leftmost first among equals.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/cancel.h"
#include "text/text_table.h"

namespace riftco {

class Vocabulary;

struct MergePair {
  uint32_t left, right;
  bool operator==(const MergePair&) const = default;
};

class MergeTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Rank is the place in the list; of a pair that is there twice the later place counts. corrupt_data when
  // the vocabulary has no token for a joined pair.
  MergeTable(const Vocabulary& vocabulary, const std::vector<MergePair>& merges);

  uint32_t size() const noexcept { return uint32_t(merges_.size()); }
  MergePair pair(uint32_t rank) const noexcept { return {merges_[rank].left, merges_[rank].right}; }
  uint32_t result(uint32_t rank) const noexcept { return merges_[rank].result; }
  uint32_t rank(uint32_t left, uint32_t right) const noexcept {  // kNone when they do not join
    const uint64_t hashed = hash(left, right);
    const uint32_t tag = slot_tag(hashed);
    for (size_t at = hashed & mask_;; at = (at + 1) & mask_) {
      if (slots_[at] == kEmptySlot) return kNone;
      const uint32_t rank = slots_[at] - tag;
      if (rank < kMostInSlots && merges_[rank].left == left && merges_[rank].right == right) return rank;
    }
  }

 private:
  struct Merge {
    uint32_t left, right, result;
  };
  uint64_t hash(uint32_t left, uint32_t right) const noexcept {
    uint64_t x = (uint64_t(left) << 32 | right) ^ seed_;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    return (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
  }

  uint64_t seed_;
  std::vector<Merge> merges_;
  std::vector<uint32_t> slots_;  // of ranks, open addressing, a power of two
  size_t mask_;
};

// Merges pieces one after another; the scratch memory of one thread.
class BpeMerger {
 public:
  BpeMerger(const MergeTable& table, const CancelFlag* cancel) : table_(table), cancel_(cancel) {}

  // Joins the ids in place and returns how many are left, at the front. O(n log n).
  size_t merge(std::span<uint32_t> ids);
  uint64_t steps() const noexcept { return steps_; }  // candidate pairs looked at since the beginning

 private:
  static constexpr uint32_t kEnd = UINT32_MAX;
  struct Links {
    uint32_t previous, next;
  };
  // A pair that may join, smallest key first: rank, then place.
  static uint64_t key(uint32_t rank, uint32_t at) noexcept { return uint64_t(rank) << 32 | at; }
  void add_pair(std::span<const uint32_t> ids, uint32_t at);

  const MergeTable& table_;
  const CancelFlag* cancel_;
  std::vector<Links> links_;
  std::vector<uint64_t> heap_;
  uint64_t steps_ = 0;
};

}  // namespace riftco
