#include "serve/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace riftco {
namespace {

using ull = unsigned long long;

uint64_t pages_of_context(uint32_t context, uint32_t page_size) {
  return page_size == 0
             ? 1
             : (uint64_t(context) + page_size - 1) / page_size;  // a page size of 0 is refused by the pool
}

KvGeometry with_page_size(KvGeometry geometry, uint32_t page_size) {
  geometry.page_size = page_size;
  return geometry;
}

}  // namespace

// --- factories

std::unique_ptr<KeyValueCache> KeyValueCacheFactory::create(uint64_t maximum_context) const {
  if (maximum_context > maximum_context_)
    fail(Status::out_of_range, "a maximum context of %llu tokens is more than the cache factory's %u",
         ull(maximum_context), maximum_context_);
  return std::make_unique<KeyValueCache>(pool_,
                                         maximum_context ? uint32_t(maximum_context) : maximum_context_);
}

void KeyValueCacheFactory::check(const Device& device, const KvGeometry& geometry,
                                 uint32_t maximum_context) const {
  KvGeometry model = with_page_size(geometry, page_size());
  model.element = element();
  if (&device == &pool_->device() && model == pool_->geometry() && maximum_context_ <= maximum_context)
    return;
  fail(Status::invalid_argument,
       "the model's caches (%s, context of %u) are not those of the factory (%s, context of %u)",
       describe(device, model).c_str(), maximum_context, describe(pool_->device(), pool_->geometry()).c_str(),
       maximum_context_);
}

PagedKvCachePool::PagedKvCachePool(const Device& device, const KvGeometry& geometry, uint32_t maximum_context,
                                   uint64_t page_count, uint64_t memory_limit)
    : KeyValueCacheFactory(
          KvCacheKind::paged, maximum_context,
          std::make_shared<KvPagePool>(
              device, geometry,
              page_count ? page_count : pages_of_context(maximum_context, geometry.page_size),
              memory_limit)) {}

ContiguousKvCacheFactory::ContiguousKvCacheFactory(const Device& device, const KvGeometry& geometry,
                                                   uint32_t maximum_context, uint64_t memory_limit)
    : KeyValueCacheFactory(KvCacheKind::contiguous, maximum_context,
                           std::make_shared<KvPagePool>(device, with_page_size(geometry, maximum_context),
                                                        KvPagePool::kUnlimited, memory_limit)) {}

// --- one cache

KeyValueCache::KeyValueCache(std::shared_ptr<KvPagePool> pool, uint32_t capacity)
    : pool_(std::move(pool)), capacity_(capacity), written_(geometry().layers) {
  pages_.reserve(pages_for(capacity));
  data_.reserve(pages_for(capacity));
  leased_.reserve(pages_for(capacity) + 1);
}

size_t KeyValueCache::pages_for(uint64_t tokens) const noexcept {
  return size_t((tokens + geometry().page_size - 1) / geometry().page_size);
}

void KeyValueCache::add_page(uint32_t page) noexcept {  // within the capacity
  pages_.push_back(page);
  data_.push_back(pool_->data(page));
}

void KeyValueCache::keep_pages(size_t count) noexcept {
  for (; pages_.size() > count; pages_.pop_back(), data_.pop_back()) pool_->release(pages_.back());
}

KvCacheUsage KeyValueCache::usage() const noexcept {
  KvCacheUsage usage{pages_.size(), 0, pages_.size() * uint64_t(pool_->page_bytes())};
  for (uint32_t page : pages_) usage.shared_count += pool_->references(page) > 1;
  return usage;
}

void KeyValueCache::begin_tokens(uint64_t n) {
  if (open_) fail(Status::invalid_state, "a transaction of %u tokens is open", open_);
  if (n == 0) fail(Status::invalid_argument, "a transaction needs at least one token");
  if (n > capacity_ - length_)
    fail(Status::context_full, "%llu more tokens do not fit: %u of %u positions are taken", ull(n), length_,
         capacity_);
  const bool replace_tail = length_ % geometry().page_size != 0 && pool_->references(pages_.back()) > 1;
  leased_.resize(pages_for(length_ + n) - pages_.size() + replace_tail);  // within the capacity
  if (!leased_.empty()) pool_->lease(leased_);
  if (replace_tail) copy_tail(leased_.front());
  for (size_t i = replace_tail; i < leased_.size(); ++i) add_page(leased_[i]);
  open_ = uint32_t(n);
  std::fill(written_.begin(), written_.end(), 0);
}

// The shared page keeps its reference until the commit, so that an abort can bring it back.
void KeyValueCache::copy_tail(uint32_t copy) noexcept {
  std::memcpy(pool_->data(copy), data_.back(), pool_->page_bytes());
  shared_tail_ = pages_.back();
  pages_.back() = copy;
  data_.back() = pool_->data(copy);
}

void KeyValueCache::check_rows(uint32_t layer, uint32_t first_row, const AttentionInput& input,
                               std::span<const float> context) const {
  const KvGeometry& g = geometry();
  if (!open_) fail(Status::invalid_state, "no transaction is open");
  if (input.device != &pool_->device())
    fail(Status::invalid_argument, "the rows are not on the cache's device (%s)", pool_->device().name);
  if (layer >= g.layers) fail(Status::out_of_range, "layer %u is not below %u", layer, g.layers);
  const size_t kv_width = size_t(g.kv_heads) * g.head_width, q_width = size_t(input.heads) * g.head_width;
  if (input.rows == 0 || input.heads == 0 || input.heads % g.kv_heads != 0 ||
      input.q.size() != input.rows * q_width || input.k.size() != input.rows * kv_width ||
      input.v.size() != input.rows * kv_width || context.size() != input.q.size())
    fail(Status::invalid_argument,
         "%u rows with %u heads over %u key/value heads of width %u do not have %zu, %zu, %zu and %zu values "
         "in q, k, v and "
         "context",
         input.rows, input.heads, g.kv_heads, g.head_width, input.q.size(), input.k.size(), input.v.size(),
         context.size());
  const uint32_t ready = layer == 0 ? open_ : written_[layer - 1];
  if (first_row != written_[layer] || input.rows > ready - first_row)
    fail(Status::invalid_state, "rows %u to %llu of layer %u are not next: %u of %u are written", first_row,
         ull(first_row) + input.rows, layer, written_[layer], ready);
}

void KeyValueCache::append_and_attend(uint32_t layer, uint32_t first_row, const AttentionInput& input,
                                      std::span<float> context) {
  check_rows(layer, first_row, input, context);
  const KvGeometry& g = geometry();
  const KernelTable& kernels = *pool_->device().kernels;
  const CacheView cache = view();
  std::vector<AttentionRow> rows(input.rows);
  for (uint32_t i = 0; i < input.rows; ++i) rows[i] = {&cache, length_ + first_row + i};
  std::vector<float> q(input.q.begin(), input.q.end()),
      k(input.k.begin(), input.k.end());  // store may rotate them
  if (!kernels.store({rows.data(), input.rows, layer, input.heads, g.kv_heads, g.head_width, nullptr, nullptr,
                      0, 0, nullptr, q.data(), k.data(), input.v.data()},
                     {}))
    fail(Status::non_finite, "a key or value of layer %u is not finite", layer);
  const Buffer scratch(nullptr, kernels.attention_scratch_bytes(input.heads / g.kv_heads, g.head_width),
                       "attention");
  const AttentionArgs attention{rows.data(),
                                layer,
                                input.heads,
                                g.kv_heads,
                                g.head_width,
                                kAllKeys,
                                1.0f / std::sqrt(float(g.head_width)),
                                q.data(),
                                context.data(),
                                nullptr,
                                scratch.data()};
  for (uint32_t head = 0; head < g.kv_heads; ++head) {
    for (uint32_t first = 0; first < input.rows; first += kMaxUnitRows) {
      const uint32_t count = std::min(kMaxUnitRows, input.rows - first);
      const uint32_t segments = rows[first + count - 1].position / kKeySegment + 1;
      kernels.attend(attention, {first, count, head, 0, segments, -1});
    }
  }
  written_[layer] += input.rows;
}

void KeyValueCache::mark_written() noexcept { std::fill(written_.begin(), written_.end(), open_); }

void KeyValueCache::commit_tokens() {
  if (!open_) fail(Status::invalid_state, "no transaction is open");
  for (size_t layer = 0; layer < written_.size(); ++layer)
    if (written_[layer] != open_)
      fail(Status::invalid_state, "layer %zu has %u of the transaction's %u rows", layer, written_[layer],
           open_);
  if (shared_tail_ != kNoPage) pool_->release(shared_tail_);
  shared_tail_ = kNoPage;
  length_ += open_;
  open_ = 0;
}

void KeyValueCache::abort_tokens() noexcept {
  if (!open_) return;
  keep_pages(pages_for(length_));
  if (shared_tail_ != kNoPage) {
    pool_->release(pages_.back());
    pages_.back() = shared_tail_;
    data_.back() = pool_->data(shared_tail_);
    shared_tail_ = kNoPage;
  }
  open_ = 0;
}

void KeyValueCache::reset() noexcept {
  abort_tokens();
  keep_pages(0);
  length_ = 0;
}

void KeyValueCache::truncate(uint64_t length) {
  if (open_) fail(Status::invalid_state, "a transaction of %u tokens is open", open_);
  if (length > length_)
    fail(Status::out_of_range, "a length of %llu is more than the cache's %u", ull(length), length_);
  keep_pages(pages_for(length));
  length_ = uint32_t(length);
}

std::unique_ptr<KeyValueCache> KeyValueCache::fork() const {
  if (open_) fail(Status::invalid_state, "a transaction of %u tokens is open", open_);
  auto copy = std::make_unique<KeyValueCache>(pool_, capacity_);
  for (uint32_t page : pages_) {
    pool_->retain(page);
    copy->add_page(page);
  }
  copy->length_ = length_;
  return copy;
}

}  // namespace riftco
