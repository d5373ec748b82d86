#include "base/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace riftco {
namespace {

constexpr size_t kAlignment = 64;
// From here on memory is mapped: it comes zeroed, and parts that are not touched cost nothing.
constexpr size_t kMapped = size_t(1) << 17;
constexpr size_t kHugePage = size_t(2) << 20;

std::atomic<int64_t> countdown{-1};
std::atomic<uint64_t> allocations{0};

bool injected_failure() noexcept {
  if (countdown.load(std::memory_order_relaxed) < 0) return false;
  return countdown.fetch_sub(1, std::memory_order_relaxed) == 0;
}

[[noreturn]] void no_memory(const char* what, size_t bytes) {
  fail(Status::out_of_memory, "no memory for %s: %zu bytes", what, bytes);
}

}  // namespace

void MemoryAccount::charge(uint64_t bytes, const char* what) {
  uint64_t held = this->bytes();
  do {
    if (held > limit_ || bytes > limit_ - held)
      fail(Status::out_of_memory, "%s: %llu bytes are needed with the %llu held, the limit is %llu", what,
           static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(held),
           static_cast<unsigned long long>(limit_));
  } while (!bytes_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
}

Buffer::Buffer(std::shared_ptr<MemoryAccount> account, size_t bytes, const char* what, Pages pages)
    : account_(std::move(account)), size_(bytes) {
  if (bytes > SIZE_MAX / 2 || injected_failure()) no_memory(what, bytes);
  if (account_) account_->charge(bytes, what);
  try {
    allocate(what, pages);
  } catch (...) {
    if (account_) account_->bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    throw;
  }
  allocations.fetch_add(1, std::memory_order_relaxed);
}

void Buffer::allocate(const char* what, Pages pages) {
  const size_t bytes = size_;
  if (bytes >= kMapped) {
    mapping_size_ =
        pages == Pages::huge ? (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage : bytes;
    mapping_ = mmap(nullptr, mapping_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) no_memory(what, bytes);
    uintptr_t start = reinterpret_cast<uintptr_t>(mapping_);
#if defined(MADV_HUGEPAGE)
    if (pages == Pages::huge) {
      start = (start + kHugePage - 1) & ~uintptr_t(kHugePage - 1);
      madvise(reinterpret_cast<void*>(start), mapping_size_ - kHugePage,
              MADV_HUGEPAGE);  // a wish; failing is fine
    }
#endif
    data_ = reinterpret_cast<std::byte*>(start);
  } else {
    const size_t rounded = (bytes + kAlignment) / kAlignment * kAlignment;
    data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
    if (!data_) no_memory(what, bytes);
    std::memset(data_, 0, rounded);
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : account_(std::move(other.account_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_size_(std::exchange(other.mapping_size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    free();
    account_ = std::move(other.account_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    mapping_ = std::exchange(other.mapping_, nullptr);
    mapping_size_ = std::exchange(other.mapping_size_, 0);
  }
  return *this;
}

void Buffer::free() noexcept {
  if (!data_) return;
  if (mapping_) {
    munmap(mapping_, mapping_size_);
  } else {
    std::free(data_);
  }
  if (account_) account_->bytes_.fetch_sub(size_, std::memory_order_relaxed);
  data_ = nullptr;
}

void fail_buffer_after(int64_t count) noexcept { countdown.store(count, std::memory_order_relaxed); }
uint64_t buffer_allocations() noexcept { return allocations.load(std::memory_order_relaxed); }

}  // namespace riftco
