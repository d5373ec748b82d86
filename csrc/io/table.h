// What the readers share: tables of named things, checked sizes, and reads that stay inside a tensor.
#pragma once
#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace riftco {

using Count = unsigned long long;  // for %llu

// A name from a file, made safe for a message.
inline std::string shown(std::string_view name) { return quoted(name.data(), name.size()); }

// Indices of `items` (fewer than 2^32) sorted by `name` (a member); equal names are corrupt_data.
template <class Item, class Name>
std::vector<uint32_t> sorted_by_name(const std::vector<Item>& items, Name Item::*name, const File& file,
                                     const char* what) {
  std::vector<uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto less = [&](uint32_t a, uint32_t b) { return items[a].*name < items[b].*name; };
  std::sort(order.begin(), order.end(), less);
  const auto twice =
      std::adjacent_find(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return !less(a, b); });
  if (twice != order.end())
    fail(Status::corrupt_data, "%s: the %s %s is there twice", file.path().c_str(), what,
         shown(items[*twice].*name).c_str());
  return order;
}

template <class Item, class Name>
const Item* find_by_name(const std::vector<Item>& items, const std::vector<uint32_t>& order, Name Item::*name,
                         std::string_view wanted) noexcept {
  const auto found = std::lower_bound(
      order.begin(), order.end(), wanted,
      [&](uint32_t index, std::string_view text) { return std::string_view(items[index].*name) < text; });
  return found != order.end() && items[*found].*name == wanted ? &items[*found] : nullptr;
}

// Bytes [at, at + out.size()) of a tensor that lies at `offset` with `bytes` bytes.
inline void read_within(const File& file, std::string_view name, uint64_t offset, uint64_t bytes, uint64_t at,
                        std::span<std::byte> out) {
  if (at > bytes || out.size() > bytes - at)
    fail(Status::out_of_range, "%s: tensor %s has %llu bytes; %zu at %llu were asked for",
         file.path().c_str(), shown(name).c_str(), Count(bytes), out.size(), Count(at));
  file.read_at(offset + at, out);
}

}  // namespace riftco
