// A hash table of ids by their text, which lies elsewhere.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace riftco {

constexpr uint32_t kNoToken = UINT32_MAX;

// Differs from run to run, so that a file cannot be written to make a hash table slow.
uint64_t hash_seed() noexcept;

// Slots of 32 bits: a number below 2^24 and 7 bits of its hash, so that others are seldom looked at.
constexpr uint32_t kMostInSlots = 1u << 24;
constexpr uint32_t kEmptySlot = UINT32_MAX;
inline uint32_t slot_tag(uint64_t hashed) noexcept { return uint32_t(hashed >> 57) << 24; }
inline uint32_t slot_number(uint32_t slot) noexcept { return slot & (kMostInSlots - 1); }

class TextTable {
 public:
  explicit TextTable(size_t most_ids);  // corrupt_data for more than kMostInSlots

  // The id with this text, or kNoToken. text_of(id) is the text of an id that was inserted.
  template <class TextOf>
  uint32_t find(std::string_view text, const TextOf& text_of) const noexcept {
    const uint32_t slot = slots_[place(text, hash(text), text_of)];
    return slot == kEmptySlot ? kNoToken : slot_number(slot);
  }

  // The id that has this text already, else kNoToken, and `id` has it from now on.
  template <class TextOf>
  uint32_t insert(std::string_view text, uint32_t id, const TextOf& text_of) noexcept {
    const uint64_t hashed = hash(text);
    uint32_t& slot = slots_[place(text, hashed, text_of)];
    if (slot != kEmptySlot) return slot_number(slot);
    slot = slot_tag(hashed) | id;
    return kNoToken;
  }

 private:
  uint64_t hash(std::string_view text) const noexcept;
  template <class TextOf>
  size_t place(std::string_view text, uint64_t hashed, const TextOf& text_of) const noexcept {
    const size_t mask = slots_.size() - 1;
    const uint32_t tag = slot_tag(hashed);
    size_t at = hashed & mask;
    while (slots_[at] != kEmptySlot &&
           (slots_[at] - tag >= kMostInSlots || text_of(slots_[at] - tag) != text))
      at = (at + 1) & mask;
    return at;
  }

  uint64_t seed_ = hash_seed();
  std::vector<uint32_t> slots_;  // open addressing, a power of two
};

}  // namespace riftco
