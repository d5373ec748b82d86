#include "text/text_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <chrono>

#include "base/error.h"

namespace riftco {

uint64_t hash_seed() noexcept {
  static const char where = 0;
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return (uint64_t(now) ^ uint64_t(reinterpret_cast<uintptr_t>(&where))) * 0x9E3779B97F4A7C15u;
}

TextTable::TextTable(size_t most_ids) {
  if (most_ids > kMostInSlots)
    fail(Status::corrupt_data, "a vocabulary of %zu tokens; at most %u are possible", most_ids, kMostInSlots);
  slots_.assign(std::bit_ceil(2 * most_ids + 1), kEmptySlot);
}

uint64_t TextTable::hash(std::string_view text) const noexcept {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed_);
}

}  // namespace riftco
