#include "text/text_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <chrono>

namespace riftco {

uint64_t hash_seed() noexcept {
  static const char where = 0;
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return (uint64_t(now) ^ uint64_t(reinterpret_cast<uintptr_t>(&where))) * 0x9E3779B97F4A7C15u;
}

uint64_t TextTable::hash(std::string_view text) const noexcept {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed_);
}

}  // namespace riftco
