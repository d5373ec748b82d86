// The counting allocator for everything large (weights, pages, workspaces): zeroed, 64-byte aligned.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace riftco {

// Bytes that one owner (a model, a pool) holds. Thread-safe.
class MemoryAccount {
 public:
  explicit MemoryAccount(uint64_t limit = UINT64_MAX) noexcept : limit_(limit) {}
  uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  friend class Buffer;
  void charge(uint64_t bytes, const char* what);  // out_of_memory when more than the limit would be held

  const uint64_t limit_;
  std::atomic<uint64_t> bytes_{0};
};

// huge: 2 MiB aligned and asks for transparent huge pages (weights: 6 to 40 % faster to stream).
enum class Pages : uint8_t { normal, huge };

// Owns zeroed memory charged to an account. Large buffers are untouched until first use. Fails with out_of_memory, naming
// what it was for and the size.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<MemoryAccount> account, size_t bytes, const char* what, Pages pages = Pages::normal);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { free(); }

  std::byte* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  template <class T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void allocate(const char* what, Pages pages);
  void free() noexcept;

  std::shared_ptr<MemoryAccount> account_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  void* mapping_ = nullptr;  // null: from the heap
  size_t mapping_size_ = 0;
};

// Test hooks. The Buffer allocation after `countdown` more fails, once; negative switches that off.
void fail_buffer_after(int64_t countdown) noexcept;
// Buffers allocated by the process so far.
uint64_t buffer_allocations() noexcept;

}  // namespace riftco
