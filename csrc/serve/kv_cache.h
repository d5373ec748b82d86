// One sequence's key/value cache: length, page table and one open transaction. Host bookkeeping; the tensors
// are pool pages.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/device.h"
#include "serve/kv_page_pool.h"

namespace riftco {

class KeyValueCache;

// Numbers are those of RT_KV_CACHE_* (include/riftco/session.h).
enum class KvCacheKind : int32_t { contiguous = 0, paged = 1 };

inline constexpr uint32_t kDefaultPageSize = 16;

// Where caches come from: any number of them, for any model of the same geometry. Thread-safe.
class KeyValueCacheFactory {
 public:
  virtual ~KeyValueCacheFactory() = default;
  KeyValueCacheFactory(const KeyValueCacheFactory&) = delete;
  KeyValueCacheFactory& operator=(const KeyValueCacheFactory&) = delete;

  KvCacheKind kind() const noexcept { return kind_; }
  uint32_t page_size() const noexcept { return pool_->geometry().page_size; }
  DType element() const noexcept { return pool_->geometry().element; }
  uint32_t maximum_context() const noexcept { return maximum_context_; }
  const KvPagePool& pool() const noexcept { return *pool_; }
  KvPagePool& pool() noexcept { return *pool_; }
  KvPoolUsage usage() const noexcept { return pool_->usage(); }

  // An empty cache of at most `maximum_context` tokens (0: the factory's; more is out_of_range). Takes no
  // page.
  std::unique_ptr<KeyValueCache> create(uint64_t maximum_context = 0) const;

  // Fails with invalid_argument, naming both geometries, unless caches from here fit a model on this device
  // with this geometry (its page size and element are not looked at) and positions for this context.
  void check(const Device& device, const KvGeometry& geometry, uint32_t maximum_context) const;

 protected:
  KeyValueCacheFactory(KvCacheKind kind, uint32_t maximum_context, std::shared_ptr<KvPagePool> pool)
      : kind_(kind), maximum_context_(maximum_context), pool_(std::move(pool)) {}

 private:
  KvCacheKind kind_;
  uint32_t maximum_context_;
  std::shared_ptr<KvPagePool> pool_;
};

// Pages of geometry.page_size tokens; page_count 0: one full context. A smaller pool keeps the capacity of
// its caches and answers cache_exhausted.
class PagedKvCachePool final : public KeyValueCacheFactory {
 public:
  PagedKvCachePool(const Device& device, const KvGeometry& geometry, uint32_t maximum_context,
                   uint64_t page_count = 0, uint64_t memory_limit = UINT64_MAX);
};

// One page of the maximum context for each cache; the page size of `geometry` is not looked at.
class ContiguousKvCacheFactory final : public KeyValueCacheFactory {
 public:
  ContiguousKvCacheFactory(const Device& device, const KvGeometry& geometry, uint32_t maximum_context,
                           uint64_t memory_limit = UINT64_MAX);
};

// What append_and_attend takes: rows of consecutive open positions on a device. The context is [rows, heads,
// head_width].
struct AttentionInput {
  const Device* device;
  uint32_t rows;
  uint32_t heads;            // query heads, a multiple of the key/value heads
  std::span<const float> q;  // [rows, heads, head_width]
  std::span<const float> k;  // [rows, kv_heads, head_width]
  std::span<const float> v;  // [rows, kv_heads, head_width]
};

struct KvCacheUsage {
  uint64_t page_count;    // pages that the cache holds
  uint64_t shared_count;  // of them held by other caches too
  uint64_t bytes;         // of all of them
};

// Not thread-safe; different caches of one pool are independent.
class KeyValueCache {
 public:
  KeyValueCache(std::shared_ptr<KvPagePool> pool, uint32_t capacity);
  ~KeyValueCache() { reset(); }
  KeyValueCache(const KeyValueCache&) = delete;
  KeyValueCache& operator=(const KeyValueCache&) = delete;

  uint32_t length() const noexcept { return length_; }  // committed tokens
  uint32_t capacity() const noexcept { return capacity_; }
  const KvGeometry& geometry() const noexcept { return pool_->geometry(); }
  std::span<const uint32_t> pages() const noexcept { return pages_; }  // physical ids in logical order
  KvCacheUsage usage() const noexcept;

  // Reserves the next n positions: leases their pages and replaces a shared tail page by a copy of its own.
  // invalid_argument (n = 0), invalid_state (a transaction is open), context_full, cache_exhausted,
  // out_of_memory: nothing changes.
  void begin_tokens(uint64_t n);
  void begin_token() { begin_tokens(1); }
  uint32_t open_tokens() const noexcept { return open_; }  // 0: no transaction

  // Writes keys and values of the open positions first_row .. first_row + rows of a layer (as they are: no
  // rotation) and returns their attention over all positions up to their own. Rows of a layer come in order,
  // after the same rows of the layer below. A failure leaves the transaction open.
  void append_and_attend(uint32_t layer, uint32_t first_row, const AttentionInput& input,
                         std::span<float> context);

  // The step executor has written all layers of the open positions through view().
  void mark_written() noexcept;

  // Makes the open positions visible. Allocates nothing; invalid_state when no transaction is open or a layer
  // is missing.
  void commit_tokens();
  void commit_token() { commit_tokens(); }

  // Length, leased and shared pages are as before begin_tokens. Does nothing without a transaction.
  void abort_tokens() noexcept;
  void abort_token() noexcept { abort_tokens(); }

  void reset() noexcept;           // aborts, then returns all pages
  void truncate(uint64_t length);  // out_of_range when longer; invalid_state with an open transaction

  // A second cache of the same tokens that shares all pages. invalid_state with an open transaction.
  std::unique_ptr<KeyValueCache> fork() const;

  // The pages as a step sees them, open positions included. Valid as long as the cache, also over later
  // calls.
  CacheView view() const noexcept { return {data_.data(), &pool_->geometry()}; }

 private:
  static constexpr uint32_t kNoPage = UINT32_MAX;

  size_t pages_for(uint64_t tokens) const noexcept;
  void add_page(uint32_t page) noexcept;
  void keep_pages(size_t count) noexcept;  // releases those after the first count
  void copy_tail(uint32_t copy) noexcept;
  void check_rows(uint32_t layer, uint32_t first_row, const AttentionInput& input,
                  std::span<const float> context) const;

  std::shared_ptr<KvPagePool> pool_;
  uint32_t capacity_;
  uint32_t length_ = 0;
  uint32_t open_ = 0;
  uint32_t shared_tail_ = kNoPage;  // the page that the open transaction replaced by a copy
  std::vector<uint32_t> pages_;     // capacity for the whole context, here and below
  std::vector<std::byte*> data_;
  std::vector<uint32_t> leased_;   // room for begin_tokens
  std::vector<uint32_t> written_;  // rows of the open transaction, by layer
};

// Aborts at the end of its scope unless committed.
class KvTransaction {
 public:
  KvTransaction(KeyValueCache& cache, uint64_t n) : cache_(cache) { cache.begin_tokens(n); }
  KvTransaction(const KvTransaction&) = delete;
  KvTransaction& operator=(const KvTransaction&) = delete;
  ~KvTransaction() { cache_.abort_tokens(); }
  void commit() { cache_.commit_tokens(); }

 private:
  KeyValueCache& cache_;
};

}  // namespace riftco
