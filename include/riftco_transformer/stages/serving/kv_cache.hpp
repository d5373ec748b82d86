// Where the key/value caches of sessions and engines come from. Swapping the factory changes no result.
#pragma once
#include <cstdint>

#include "riftco/session.h"
#include "riftco_transformer/artifacts/model.hpp"
#include "riftco_transformer/stages/serving/config.hpp"

namespace riftco_transformer::stages::serving {

// Thread-safe; serves any number of sessions and engines of models with the same geometry.
class KeyValueCacheFactory {
 public:
  KeyValueCacheFactory(KeyValueCacheFactory&&) noexcept = default;
  KeyValueCacheFactory& operator=(KeyValueCacheFactory&&) noexcept = default;
  virtual ~KeyValueCacheFactory() = default;

  rt_kv_cache_usage usage() const {
    rt_kv_cache_usage usage{};
    usage.struct_size = sizeof usage;
    detail::check(rt_kv_cache_factory_get_usage(get(), &usage));
    return usage;
  }

  rt_kv_cache_factory* get() const noexcept { return handle_.get(); }

 protected:
  KeyValueCacheFactory(const artifacts::Model& model, KvCacheKind kind, std::uint64_t block_size,
                       std::uint64_t block_count, std::uint64_t maximum_context, KvElement element) {
    auto options = detail::defaults<rt_kv_cache_factory_options>(rt_kv_cache_factory_options_init);
    options.kind = static_cast<std::int32_t>(kind);
    options.block_size = block_size;
    options.block_count = block_count;
    options.maximum_context = maximum_context;
    options.element_type = static_cast<std::int32_t>(element);
    handle_ = detail::make<Handle>(rt_kv_cache_factory_create, model.get(), &options);
  }

 private:
  using Handle = detail::Owned<rt_kv_cache_factory, rt_kv_cache_factory_release>;
  Handle handle_;
};

// A pool of pages, leased as sequences grow. block_count 0: one full context.
class PagedKvCachePool final : public KeyValueCacheFactory {
 public:
  explicit PagedKvCachePool(const artifacts::Model& model, std::uint64_t block_size = 16,
                            std::uint64_t block_count = 0, std::uint64_t maximum_context = 0,
                            KvElement element = KvElement::F32)
      : KeyValueCacheFactory(model, KvCacheKind::Paged, block_size, block_count, maximum_context, element) {}
};

// One fixed page of the maximum context for each sequence.
class ContiguousKvCacheFactory final : public KeyValueCacheFactory {
 public:
  explicit ContiguousKvCacheFactory(const artifacts::Model& model, std::uint64_t maximum_context = 0,
                                    KvElement element = KvElement::F32)
      : KeyValueCacheFactory(model, KvCacheKind::Contiguous, 0, 0, maximum_context, element) {}
};

}  // namespace riftco_transformer::stages::serving
