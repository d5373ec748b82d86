// The counting allocator for everything large (weights, pages, workspaces): zeroed, 64-byte aligned, huge pages where the
// system offers them.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace riftco {

// Bytes that one owner (a model, a pool) holds. Thread-safe.
class MemoryAccount {
 public:
  uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  friend class Buffer;
  std::atomic<uint64_t> bytes_{0};
};

// Owns zeroed memory charged to an account. Fails with out_of_memory, naming what it was for and the size.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<MemoryAccount> account, size_t bytes, const char* what);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  template <class T>
  T* as() const noexcept { return reinterpret_cast<T*>(data_); }

 private:
  void free() noexcept;

  std::shared_ptr<MemoryAccount> account_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Test hook: the allocation after `countdown` more fails (once); negative switches it off. Counts Buffer allocations only.
void fail_buffer_after(int64_t countdown) noexcept;

// Test hook: Buffers allocated by the process so far.
uint64_t buffer_allocations() noexcept;

}  // namespace riftco
