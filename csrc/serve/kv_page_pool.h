// The pages of key/value caches: a free list with reference counts. A page with one reference is writable by
// its owner, one with more is shared and read only.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "core/device.h"

namespace riftco {

// "cpu, 4 layers, 2 key/value heads of width 32 in f16, pages of 16 tokens"
std::string describe(const Device& device, const KvGeometry& geometry);

struct KvPoolUsage {
  uint64_t page_size;        // tokens
  uint64_t page_count;       // unlimited pools: pages that exist now
  uint64_t free_count;       // pages that no cache holds
  uint64_t allocated_bytes;  // memory of the pages that were ever leased
};

// Thread-safe. Page ids are below page_count; the memory of a page is allocated at its first lease, zeroed,
// and kept.
class KvPagePool {
 public:
  static constexpr uint32_t kUnlimited = std::numeric_limits<uint32_t>::max();

  // Fails with overflow or out_of_range for sizes that no machine has, before anything is allocated. No more
  // than `memory_limit` bytes of pages are ever allocated.
  KvPagePool(const Device& device, const KvGeometry& geometry, uint64_t page_count,
             uint64_t memory_limit = UINT64_MAX);
  KvPagePool(const KvPagePool&) = delete;
  KvPagePool& operator=(const KvPagePool&) = delete;

  const Device& device() const noexcept { return device_; }
  const KvGeometry& geometry() const noexcept { return geometry_; }
  size_t page_bytes() const noexcept { return page_bytes_; }

  // Takes pages.size() pages with one reference each, all or none: cache_exhausted, out_of_memory.
  void lease(std::span<uint32_t> pages);
  void retain(uint32_t page) noexcept;
  void release(uint32_t page) noexcept;  // the last reference puts it back on the free list
  uint32_t references(uint32_t page) const noexcept;
  std::byte* data(uint32_t page) const noexcept;  // of a page that was leased

  KvPoolUsage usage() const noexcept;

  // Test hooks. audit() fails with `internal` unless free + owned = total and the free list is sound; returns
  // the number of references to all pages. poison_free_pages() fills free pages with NaN.
  uint64_t audit() const;
  void poison_free_pages() noexcept;

 private:
  struct Page {
    Buffer memory;
    uint32_t references = 0;
  };

  const Device& device_;
  const KvGeometry geometry_;
  const uint32_t page_limit_;
  const size_t page_bytes_;
  std::shared_ptr<MemoryAccount> account_;
  mutable std::mutex mutex_;
  std::vector<Page> pages_;     // those that were ever leased; guarded by mutex_, as is free_
  std::vector<uint32_t> free_;  // those of them without a reference; capacity for all of them
};

}  // namespace riftco
