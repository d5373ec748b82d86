#include "io_support.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> g_now{0}, g_peak{0};

void* allocate(size_t size, size_t alignment) {
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(size)
                     : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (!memory) throw std::bad_alloc();
  const size_t now = g_now += ::malloc_usable_size(memory);
  if (now > g_peak) g_peak = now;
  return memory;
}

void release(void* memory) noexcept {
  if (memory) g_now -= ::malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(size_t size) { return allocate(size, 1); }
void* operator new(size_t size, std::align_val_t alignment) { return allocate(size, size_t(alignment)); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }

namespace riftco {

size_t take_memory_peak() noexcept {
  static size_t before = 0;
  const size_t peak = g_peak - before;
  before = g_now;
  g_peak = g_now.load();
  return peak;
}

}  // namespace riftco
