// The shape of a key/value cache. Pages are addressed by one physical id in all layers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace riftco {

// Logically a layer's keys and values are each element [physical_page, kv_head, page_offset, head_width]. How a device
// orders them inside its page is its kernels' secret (KernelTable::kv_page_bytes, kv_read).
struct KvGeometry {
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_width = 0;
  uint32_t page_size = 0;      // tokens per page
  DType element = DType::f32;  // f32, f16 or bf16

  bool operator==(const KvGeometry&) const = default;
};

// What a step sees of one sequence's cache: its pages in logical order. Position p lives in pages[p / page_size].
// All positions up to the row's own are backed by a page; what lies beyond is never read.
struct CacheView {
  std::byte* const* pages = nullptr;
  const KvGeometry* geometry = nullptr;
};

}  // namespace riftco
