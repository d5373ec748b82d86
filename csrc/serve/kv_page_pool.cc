#include "serve/kv_page_pool.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace riftco {
namespace {

constexpr uint64_t kMaxBytes = uint64_t(1) << 46;  // of a page, and of a pool

uint64_t multiply(uint64_t a, uint64_t b, const Device& device, const KvGeometry& geometry) {
  if (b != 0 && a > kMaxBytes / b)
    fail(Status::overflow, "key/value pages are too large: %s", describe(device, geometry).c_str());
  return a * b;
}

size_t checked_page_bytes(const Device& device, const KvGeometry& geometry) {
  const auto& g = geometry;
  if (g.layers == 0 || g.kv_heads == 0 || g.head_width == 0 || g.page_size == 0)
    fail(Status::invalid_argument, "no key/value page has this shape: %s",
         describe(device, geometry).c_str());
  uint64_t bytes = 2 * dtype_info(g.element).bytes;
  for (uint32_t factor : {g.layers, g.kv_heads, g.head_width, g.page_size})
    bytes = multiply(bytes, factor, device, geometry);
  return device.kernels->kv_page_bytes(geometry);
}

}  // namespace

std::string describe(const Device& device, const KvGeometry& g) {
  return format("%s, %u layers, %u key/value heads of width %u in %s, pages of %u tokens", device.name,
                g.layers, g.kv_heads, g.head_width, dtype_info(g.element).name, g.page_size);
}

KvPagePool::KvPagePool(const Device& device, const KvGeometry& geometry, uint64_t page_count,
                       uint64_t memory_limit)
    : device_(device),
      geometry_(geometry),
      page_limit_(uint32_t(std::min<uint64_t>(page_count, kUnlimited))),
      page_bytes_(checked_page_bytes(device, geometry)),
      account_(std::make_shared<MemoryAccount>(memory_limit)) {
  if (page_count == 0) fail(Status::invalid_argument, "a pool needs at least one page");
  if (page_count > kUnlimited)
    fail(Status::out_of_range, "%llu pages are more than %u", static_cast<unsigned long long>(page_count),
         kUnlimited - 1);
  if (page_count != kUnlimited) multiply(page_bytes_, page_count, device, geometry);
}

void KvPagePool::lease(std::span<uint32_t> out) {
  const std::lock_guard lock(mutex_);
  const size_t reused = std::min(free_.size(), out.size()), fresh = out.size() - reused,
               before = pages_.size();
  if (fresh > page_limit_ - before)
    fail(Status::cache_exhausted, "%zu pages of %u tokens are needed, %zu of the pool's %u are free",
         out.size(), geometry_.page_size, free_.size() + page_limit_ - before, page_limit_);
  try {
    if (free_.capacity() < before + fresh) free_.reserve(std::max(before + fresh, 2 * free_.capacity()));
    for (size_t i = 0; i < fresh; ++i)
      pages_.push_back({Buffer(account_, page_bytes_, "a key/value cache page"), 0});
  } catch (...) {
    pages_.resize(before);
    throw;
  }
  std::copy(free_.end() - ptrdiff_t(reused), free_.end(), out.begin());
  free_.resize(free_.size() - reused);
  for (size_t i = 0; i < fresh; ++i) out[reused + i] = uint32_t(before + i);
  for (uint32_t page : out) pages_[page].references = 1;
}

void KvPagePool::retain(uint32_t page) noexcept {
  const std::lock_guard lock(mutex_);
  pages_[page].references++;
}

void KvPagePool::release(uint32_t page) noexcept {
  const std::lock_guard lock(mutex_);
  if (--pages_[page].references == 0) free_.push_back(page);  // within the capacity
}

uint32_t KvPagePool::references(uint32_t page) const noexcept {
  const std::lock_guard lock(mutex_);
  return pages_[page].references;
}

std::byte* KvPagePool::data(uint32_t page) const noexcept {
  const std::lock_guard lock(mutex_);
  return pages_[page].memory.data();
}

KvPoolUsage KvPagePool::usage() const noexcept {
  const std::lock_guard lock(mutex_);
  const uint64_t count = page_limit_ == kUnlimited ? pages_.size() : page_limit_;
  return {geometry_.page_size, count, free_.size() + count - pages_.size(), account_->bytes()};
}

uint64_t KvPagePool::audit() const {
  const std::lock_guard lock(mutex_);
  std::vector<bool> free(pages_.size());
  for (uint32_t page : free_) {
    if (page >= pages_.size() || free[page])
      fail(Status::internal, "page %u is on the free list twice or unknown", page);
    free[page] = true;
  }
  uint64_t references = 0;
  for (size_t page = 0; page < pages_.size(); ++page) {
    references += pages_[page].references;
    if (free[page] != (pages_[page].references == 0))
      fail(Status::internal, "page %zu has %u references and is%s free", page, pages_[page].references,
           free[page] ? "" : " not");
  }
  if (account_->bytes() != pages_.size() * page_bytes_)
    fail(Status::internal, "%zu pages of %zu bytes hold %llu bytes", pages_.size(), page_bytes_,
         static_cast<unsigned long long>(account_->bytes()));
  return references;
}

void KvPagePool::poison_free_pages() noexcept {
  const std::lock_guard lock(mutex_);
  for (uint32_t page : free_) std::memset(pages_[page].memory.data(), 0xFF, page_bytes_);
}

}  // namespace riftco
