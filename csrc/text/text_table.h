// A hash table of ids by their text, which lies elsewhere.
#pragma once
#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

namespace riftco {

constexpr uint32_t kNoToken = UINT32_MAX;

// Differs from run to run, so that a file cannot be written to make a hash table slow.
uint64_t hash_seed() noexcept;

class TextTable {
 public:
  explicit TextTable(size_t most_ids) : slots_(std::bit_ceil(2 * most_ids + 1)) {}

  // The id with this text, or kNoToken. text_of(id) is the text of an id that was inserted.
  template <class TextOf>
  uint32_t find(std::string_view text, const TextOf& text_of) const noexcept {
    return slots_[place(text, hash(text), text_of)].id;
  }

  // The id that has this text already, else kNoToken, and `id` has it from now on.
  template <class TextOf>
  uint32_t insert(std::string_view text, uint32_t id, const TextOf& text_of) noexcept {
    const uint64_t hashed = hash(text);
    Slot& slot = slots_[place(text, hashed, text_of)];
    if (slot.id != kNoToken) return slot.id;
    slot = {id, uint32_t(hashed >> 32)};
    return kNoToken;
  }

 private:
  struct Slot {
    uint32_t id = kNoToken;
    uint32_t tag = 0;  // the hash's upper half: other texts are seldom looked at
  };

  uint64_t hash(std::string_view text) const noexcept;
  template <class TextOf>
  size_t place(std::string_view text, uint64_t hashed, const TextOf& text_of) const noexcept {
    const size_t mask = slots_.size() - 1;
    size_t at = hashed & mask;
    while (slots_[at].id != kNoToken &&
           (slots_[at].tag != uint32_t(hashed >> 32) || text_of(slots_[at].id) != text))
      at = (at + 1) & mask;
    return at;
  }

  uint64_t seed_ = hash_seed();
  std::vector<Slot> slots_;  // open addressing, a power of two
};

}  // namespace riftco
