// Every row and sentence of the cache's contract, on bookkeeping alone where the numbers do not matter.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <thread>

#include "base/random.h"
#include "serve/kv_cache.h"
#include "serve_support.h"

namespace riftco {
namespace {

using test::Failure;
using test::failure_of;

size_t plain_page_bytes(const KvGeometry& g) {
  return size_t(2) * g.layers * g.kv_heads * g.head_width * g.page_size * 4;
}

// A device that has pages and no kernels.
const Device& page_device() {
  static const KernelTable table = [] {
    KernelTable t{};
    t.kv_page_bytes = plain_page_bytes;
    return t;
  }();
  static const Device device{Backend::cpu, "pages", &table, nullptr};
  return device;
}

constexpr KvGeometry kGeometry{2, 1, 4, 4};

PagedKvCachePool make_pool(uint32_t context, uint64_t pages = 0) {
  return {page_device(), kGeometry, context, pages};
}

void append(KeyValueCache& cache, uint32_t n) {
  cache.begin_tokens(n);
  cache.mark_written();
  cache.commit_tokens();
}

// Everything that can be seen of a cache and its pool.
struct State {
  uint32_t length, open;
  std::vector<uint32_t> pages, references;
  uint64_t free_count, allocated_bytes, total_references;
  bool operator==(const State&) const = default;
};

State state_of(const KeyValueCache& cache, const KeyValueCacheFactory& factory) {
  State s{cache.length(), cache.open_tokens(), {cache.pages().begin(), cache.pages().end()}, {}, 0, 0, 0};
  for (uint32_t page : s.pages) s.references.push_back(factory.pool().references(page));
  s.free_count = factory.usage().free_count;
  s.allocated_bytes = factory.usage().allocated_bytes;
  s.total_references = factory.pool().audit();
  for (size_t i = 0; i < s.pages.size(); ++i)
    EXPECT_EQ(cache.view().pages[i], factory.pool().data(s.pages[i]));
  return s;
}

TEST(KvCache, BeginLeasesOnlyThePagesThatItNeeds) {
  auto factory = make_pool(64);
  EXPECT_EQ(factory.usage().page_count, 16u);
  EXPECT_EQ(factory.usage().allocated_bytes, 0u);
  auto cache = factory.create();
  EXPECT_EQ(factory.usage().free_count, 16u) << "a cache takes no page before it is written";
  append(*cache, 1);
  EXPECT_EQ(cache->pages().size(), 1u);
  EXPECT_EQ(factory.usage().allocated_bytes, plain_page_bytes(kGeometry));
  append(*cache, 3);
  EXPECT_EQ(cache->pages().size(), 1u);
  append(*cache, 1);
  EXPECT_EQ(cache->pages().size(), 2u);
  append(*cache, 9);
  EXPECT_EQ(cache->pages().size(), 4u);
  EXPECT_EQ(factory.usage().free_count, 12u);
  cache->begin_token();
  EXPECT_EQ(cache->length(), 14u) << "open positions are not visible";
  EXPECT_EQ(cache->open_tokens(), 1u);
  cache->mark_written();
  cache->commit_token();
  EXPECT_EQ(cache->length(), 15u);
}

TEST(KvCache, BeginFailuresChangeNothing) {
  auto factory = make_pool(16, 3);
  auto cache = factory.create();
  append(*cache, 5);
  const State before = state_of(*cache, factory);
  EXPECT_EQ(failure_of([&] { cache->begin_tokens(0); }).status, Status::invalid_argument);
  const Failure full = failure_of([&] { cache->begin_tokens(12); });
  EXPECT_EQ(full.status, Status::context_full);
  EXPECT_EQ(full.message, "12 more tokens do not fit: 5 of 16 positions are taken");
  EXPECT_EQ(failure_of([&] { cache->begin_tokens(UINT64_MAX); }).status, Status::context_full);
  const Failure exhausted = failure_of([&] { cache->begin_tokens(8); });
  EXPECT_EQ(exhausted.status, Status::cache_exhausted);
  EXPECT_EQ(exhausted.message, "2 pages of 4 tokens are needed, 1 of the pool's 3 are free");
  fail_buffer_after(0);
  EXPECT_EQ(failure_of([&] { cache->begin_tokens(7); }).status, Status::out_of_memory);
  EXPECT_EQ(state_of(*cache, factory), before);

  cache->begin_token();
  const State open = state_of(*cache, factory);
  EXPECT_EQ(failure_of([&] { cache->begin_token(); }).status, Status::invalid_state);
  EXPECT_EQ(failure_of([&] { cache->truncate(1); }).status, Status::invalid_state);
  EXPECT_EQ(failure_of([&] { cache->fork(); }).status, Status::invalid_state);
  EXPECT_EQ(state_of(*cache, factory), open);
  cache->abort_token();
  EXPECT_EQ(state_of(*cache, factory), before);
}

TEST(KvCache, MemoryFailsAtEveryPageOfABegin) {
  auto factory = make_pool(64);
  auto cache = factory.create();
  append(*cache, 2);
  auto fork = cache->fork();
  const State before = state_of(*cache, factory);
  for (int64_t point = 0; point < 5; ++point) {  // the copy of the shared tail and 4 new pages
    fail_buffer_after(point);
    EXPECT_EQ(failure_of([&] { cache->begin_tokens(18); }).status, Status::out_of_memory) << point;
    EXPECT_EQ(state_of(*cache, factory), before) << point;
  }
  cache->begin_tokens(18);
  EXPECT_EQ(cache->pages().size(), 5u);
}

TEST(KvCache, AbortRestoresSharedAndLeasedPages) {
  static_assert(noexcept(std::declval<KeyValueCache&>().abort_tokens()));
  auto factory = make_pool(64);
  auto cache = factory.create();
  append(*cache, 6);
  std::memset(cache->view().pages[1], 7, factory.pool().page_bytes());
  auto fork = cache->fork();
  const State before = state_of(*fork, factory);
  EXPECT_EQ(before.references, (std::vector<uint32_t>{2, 2}));
  fork->begin_tokens(7);
  EXPECT_NE(fork->pages()[1], before.pages[1]);
  std::memset(fork->view().pages[1], 9, factory.pool().page_bytes());
  fork->abort_tokens();
  State after = state_of(*fork, factory);
  EXPECT_EQ(after.allocated_bytes, before.allocated_bytes + 3 * plain_page_bytes(kGeometry))
      << "memory stays with the pool";
  after.allocated_bytes = before.allocated_bytes;
  EXPECT_EQ(after, before);
  EXPECT_EQ(fork->view().pages[1][0], std::byte(7));
  fork->abort_tokens();  // without a transaction: nothing
  EXPECT_EQ(fork->length(), 6u);
}

TEST(KvCache, ForkSharesPagesAndCopiesOnlyAWrittenTail) {
  auto factory = make_pool(64);
  auto cache = factory.create();
  append(*cache, 6);
  std::memset(cache->view().pages[1], 7, factory.pool().page_bytes());
  const uint64_t free = factory.usage().free_count;
  auto fork = cache->fork();
  EXPECT_EQ(factory.usage().free_count, free) << "a fork takes no page";
  EXPECT_EQ(fork->length(), 6u);
  append(*fork, 1);
  EXPECT_EQ(fork->pages()[0], cache->pages()[0]);
  EXPECT_NE(fork->pages()[1], cache->pages()[1]);
  EXPECT_EQ(std::memcmp(fork->view().pages[1], cache->view().pages[1], factory.pool().page_bytes()), 0);
  EXPECT_EQ(factory.pool().references(cache->pages()[1]), 1u);
  const uint32_t own = cache->pages()[1];
  append(*cache, 1);
  EXPECT_EQ(cache->pages()[1], own) << "a tail of one owner is written in place";
  fork.reset();
  EXPECT_EQ(factory.pool().audit(), 2u);

  append(*cache, 1);  // a full last page is never copied
  auto aligned = cache->fork();
  append(*aligned, 1);
  EXPECT_EQ(aligned->pages()[1], cache->pages()[1]);
  EXPECT_EQ(aligned->pages().size(), 3u);
}

TEST(KvCache, TruncateAndResetReturnPages) {
  auto factory = make_pool(64);
  auto cache = factory.create();
  append(*cache, 14);
  EXPECT_EQ(failure_of([&] { cache->truncate(15); }).message, "a length of 15 is more than the cache's 14");
  EXPECT_EQ(failure_of([&] { cache->truncate(UINT64_MAX); }).status, Status::out_of_range);
  cache->truncate(14);
  EXPECT_EQ(cache->pages().size(), 4u);
  cache->truncate(9);
  EXPECT_EQ(cache->pages().size(), 3u);
  cache->truncate(8);
  EXPECT_EQ(cache->pages().size(), 2u);
  EXPECT_EQ(factory.usage().free_count, 14u);
  auto fork = cache->fork();
  fork->truncate(3);
  EXPECT_EQ(factory.pool().references(cache->pages()[0]), 2u);
  EXPECT_EQ(factory.pool().references(cache->pages()[1]), 1u);
  append(*fork, 1);
  EXPECT_NE(fork->pages()[0], cache->pages()[0]) << "the page became a shared tail";
  cache->begin_tokens(5);
  cache->reset();  // also with an open transaction
  EXPECT_EQ(cache->length(), 0u);
  EXPECT_EQ(cache->open_tokens(), 0u);
  EXPECT_EQ(factory.pool().audit(), 1u);
  cache->truncate(0);
  fork.reset();
  EXPECT_EQ(factory.usage().free_count, 16u) << "the destructor returns all pages";
}

TEST(KvCache, DestructorAbortsAnOpenTransaction) {
  auto factory = make_pool(64);
  auto cache = factory.create();
  append(*cache, 2);
  auto fork = cache->fork();
  fork->begin_tokens(9);
  fork.reset();
  EXPECT_EQ(factory.pool().audit(), 1u);
}

TEST(KvCache, CommitRefusesAMissingLayer) {
  auto factory = make_pool(64);
  auto cache = factory.create();
  EXPECT_EQ(failure_of([&] { cache->commit_tokens(); }).status, Status::invalid_state);
  cache->begin_tokens(3);
  const Failure missing = failure_of([&] { cache->commit_tokens(); });
  EXPECT_EQ(missing.status, Status::invalid_state);
  EXPECT_EQ(missing.message, "layer 0 has 0 of the transaction's 3 rows");
  EXPECT_EQ(cache->open_tokens(), 3u);
  cache->mark_written();
  const uint64_t allocations = buffer_allocations() + test::new_calls();
  cache->commit_tokens();
  EXPECT_EQ(buffer_allocations() + test::new_calls(), allocations);
  EXPECT_EQ(cache->length(), 3u);
}

TEST(KvCache, CachesShareAPoolUntilItIsExhausted) {
  auto factory = make_pool(16, 4);
  auto a = factory.create(), b = factory.create(), c = factory.create();
  append(*a, 8);
  append(*b, 8);
  EXPECT_EQ(a->capacity(), 16u) << "a small pool keeps the capacity";
  EXPECT_EQ(failure_of([&] { c->begin_token(); }).status, Status::cache_exhausted);
  a->truncate(4);
  append(*c, 1);
  EXPECT_EQ(failure_of([&] { a->begin_token(); }).status, Status::cache_exhausted);
}

TEST(KvCache, SharedTailNeedsAFreePage) {
  auto factory = make_pool(16, 1);
  auto cache = factory.create();
  append(*cache, 2);
  auto fork = cache->fork();
  const State before = state_of(*cache, factory);
  EXPECT_EQ(failure_of([&] { fork->begin_token(); }).status, Status::cache_exhausted);
  EXPECT_EQ(state_of(*cache, factory), before);
  cache->reset();
  append(*fork, 1);
}

TEST(KvCache, ContiguousCachesHaveOnePageEach) {
  const ContiguousKvCacheFactory factory(page_device(), kGeometry, 10);
  EXPECT_EQ(factory.kind(), KvCacheKind::contiguous);
  EXPECT_EQ(factory.page_size(), 10u);
  EXPECT_EQ(factory.usage().page_count, 0u);
  auto a = factory.create(), b = factory.create(6);
  append(*a, 10);
  append(*b, 6);
  EXPECT_EQ(a->pages().size(), 1u);
  EXPECT_EQ(factory.usage().page_count, 2u);
  EXPECT_EQ(failure_of([&] { b->begin_token(); }).status, Status::context_full);
  a->truncate(5);
  auto fork = a->fork();
  append(*fork, 1);
  EXPECT_EQ(factory.usage().page_count, 3u);
  fork.reset();
  EXPECT_EQ(factory.usage().free_count, 1u);
  auto again = factory.create();
  append(*again, 1);
  EXPECT_EQ(factory.usage().page_count, 3u) << "a returned page is used again";
}

TEST(KvCache, BlockCountZeroIsOneFullContext) {
  EXPECT_EQ(make_pool(64).usage().page_count, 16u);
  EXPECT_EQ(make_pool(65).usage().page_count, 17u);
  EXPECT_EQ(make_pool(1).usage().page_count, 1u);
  EXPECT_EQ(make_pool(3).usage().page_size, 4u) << "a page may be larger than the context";
}

TEST(KvCache, SizesAreCheckedBeforeAnyAllocation) {
  const uint64_t allocations = buffer_allocations();
  const auto status = [](KvGeometry g, uint32_t context, uint64_t pages) {
    return failure_of([&] { PagedKvCachePool pool(page_device(), g, context, pages); }).status;
  };
  EXPECT_EQ(status({2, 1, 4, 0}, 64, 0), Status::invalid_argument);
  EXPECT_EQ(status({0, 1, 4, 4}, 64, 0), Status::invalid_argument);
  EXPECT_EQ(status({UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}, 64, 0), Status::overflow);
  EXPECT_EQ(status({2, 1, 4, 4}, 64, uint64_t(1) << 40), Status::out_of_range);
  EXPECT_EQ(status({2, 1, 4, 4}, 64, UINT64_MAX), Status::out_of_range);
  EXPECT_EQ(status({64, 64, 128, 4}, 64, UINT32_MAX - 1), Status::overflow);
  EXPECT_EQ(status({2, 1, 4, 4}, 0, 0), Status::invalid_argument);
  EXPECT_EQ(buffer_allocations(), allocations);
}

TEST(KvCache, MaximumContextOfACache) {
  auto factory = make_pool(64);
  EXPECT_EQ(factory.create()->capacity(), 64u);
  EXPECT_EQ(factory.create(5)->capacity(), 5u);
  EXPECT_EQ(failure_of([&] { factory.create(65); }).status, Status::out_of_range);
  EXPECT_EQ(failure_of([&] { factory.create(uint64_t(1) << 32); }).status, Status::out_of_range);
}

TEST(KvCache, AnotherGeometryIsRefusedWithBoth) {
  auto factory = make_pool(64);
  factory.check(page_device(), {2, 1, 4, 999}, 64);  // a model has no page size
  factory.check(page_device(), kGeometry, 100);
  const Failure failure = failure_of([&] { factory.check(page_device(), {3, 1, 4, 4}, 64); });
  EXPECT_EQ(failure.status, Status::invalid_argument);
  EXPECT_EQ(failure.message,
            "the model's caches (pages, 3 layers, 1 key/value heads of width 4 in f32, pages of 4 tokens, "
            "context of 64) "
            "are not those "
            "of the factory (pages, 2 layers, 1 key/value heads of width 4 in f32, pages of 4 tokens, "
            "context of 64)");
  const auto refused = [&](const Device& device, const KvGeometry& g, uint32_t context) {
    return failure_of([&] { factory.check(device, g, context); }).status == Status::invalid_argument;
  };
  EXPECT_TRUE(refused(page_device(), {2, 2, 4, 4}, 64));
  EXPECT_TRUE(refused(page_device(), {2, 1, 8, 4}, 64));
  EXPECT_TRUE(refused(page_device(), kGeometry, 63));
  EXPECT_TRUE(refused(test::best_device(), kGeometry, 64));
}

TEST(KvCache, PoisonReachesFreePagesOnly) {
  auto factory = make_pool(64);
  auto kept = factory.create(), gone = factory.create();
  append(*kept, 1);
  append(*gone, 1);
  const std::byte* page = gone->view().pages[0];
  gone.reset();
  factory.pool().poison_free_pages();
  EXPECT_EQ(kept->view().pages[0][0], std::byte(0));
  float value;
  std::memcpy(&value, page, sizeof value);
  EXPECT_TRUE(std::isnan(value));
}

// --- random operations against a shadow model

// What a cache should be: each page is known by who wrote it (a label), shared labels mean shared pages.
TEST(KvCache, RandomOperationsKeepThePoolsBooks) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    auto factory = make_pool(40, 24);
    std::vector<std::unique_ptr<KeyValueCache>> caches;
    std::vector<std::vector<uint8_t>> shadow;  // the byte that each committed position holds
    uint64_t counter = 0;
    const auto pick = [&](uint32_t below) { return philox(seed, counter++, 5)[0] % below; };
    const auto write = [&](KeyValueCache& cache, uint32_t from, uint32_t n, uint8_t value) {
      for (uint32_t p = from; p < from + n; ++p) cache.view().pages[p / 4][p % 4] = std::byte(value);
    };
    for (int step = 0; step < 400; ++step) {
      const uint32_t what = caches.empty() ? 0 : pick(8);
      const size_t i = caches.empty() ? 0 : pick(uint32_t(caches.size()));
      if (what == 0 && caches.size() < 6) {
        caches.push_back(factory.create());
        shadow.emplace_back();
      } else if (what == 1 && caches.size() < 6) {
        caches.push_back(caches[i]->fork());
        shadow.push_back(shadow[i]);
      } else if (what == 2) {
        const uint32_t length = pick(caches[i]->length() + 1);
        caches[i]->truncate(length);
        shadow[i].resize(length);
      } else if (what == 3 && pick(4) == 0) {
        caches.erase(caches.begin() + ptrdiff_t(i));
        shadow.erase(shadow.begin() + ptrdiff_t(i));
      } else {
        const uint32_t n = 1 + pick(7), length = caches[i]->length();
        const auto failure = failure_of([&] { caches[i]->begin_tokens(n); });
        if (failure.status != Status::ok) {
          EXPECT_TRUE(length + n > 40 ? failure.status == Status::context_full
                                      : failure.status == Status::cache_exhausted);
        } else {
          const uint8_t value = uint8_t(1 + pick(250));
          write(*caches[i], length, n, value);
          if (pick(3) == 0) {
            caches[i]->abort_tokens();
          } else {
            caches[i]->mark_written();
            caches[i]->commit_tokens();
            shadow[i].resize(length + n, value);
          }
        }
      }
      uint64_t references = 0;
      for (size_t c = 0; c < caches.size(); ++c) {
        ASSERT_EQ(caches[c]->length(), shadow[c].size());
        ASSERT_EQ(caches[c]->pages().size(), (shadow[c].size() + 3) / 4);
        references += caches[c]->pages().size();
        for (size_t p = 0; p < shadow[c].size(); ++p)
          ASSERT_EQ(caches[c]->view().pages[p / 4][p % 4], std::byte(shadow[c][p]))
              << "seed " << seed << " step " << step;
      }
      ASSERT_EQ(factory.pool().audit(), references);
      factory.pool().poison_free_pages();
    }
    caches.clear();
    ASSERT_EQ(factory.usage().free_count, 24u);
  }
}

TEST(KvCache, ThreadsShareAPool) {
  auto factory = make_pool(40, 12);
  auto parent = factory.create();
  append(*parent, 6);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&factory, t, fork = parent->fork()] {
      for (uint64_t i = 0; i < 2000; ++i) {
        const uint32_t n = 1 + philox(t, i)[0] % 9;
        if (failure_of([&] { append(*fork, n); }).status != Status::ok)
          fork->truncate(philox(t, i)[1] % (fork->length() + 1));
        if (i % 64 == 0) factory.pool().audit();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(factory.pool().audit(), 2u);
  EXPECT_EQ(parent->length(), 6u);
}

// --- append_and_attend against plain loops

class AppendAndAttend : public testing::TestWithParam<CpuIsa> {
 protected:
  static constexpr uint32_t kLayers = 2, kKvHeads = 2, kHeads = 6, kWidth = 20, kPage = 3;

  std::vector<float> values(size_t count, uint64_t stream) {
    std::vector<float> out(count);
    for (size_t i = 0; i < count; ++i) out[i] = float(philox(9, i, stream)[0]) * 0x1p-31f - 1.0f;
    return out;
  }
};

TEST_P(AppendAndAttend, EqualsPlainLoops) {
  const Device& device = test::device_of(GetParam());
  PagedKvCachePool factory(device, {kLayers, kKvHeads, kWidth, kPage}, 400);
  auto cache = factory.create();
  const uint32_t total = 300;
  const auto q = values(size_t(total) * kHeads * kWidth, 1), k = values(size_t(total) * kKvHeads * kWidth, 2),
             v = values(size_t(total) * kKvHeads * kWidth, 3);
  std::vector<float> context(q.size());
  for (uint32_t done = 0, chunk = 1; done < total; done += chunk, chunk = std::min(2 * chunk, total - done)) {
    cache->begin_tokens(chunk);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const uint32_t half = chunk / 2;  // a layer's rows may come in pieces
      for (const auto& [first, rows] : {std::pair{0u, half}, std::pair{half, chunk - half}}) {
        if (rows == 0) continue;
        const size_t q_at = size_t(done + first) * kHeads * kWidth,
                     kv_at = size_t(done + first) * kKvHeads * kWidth;
        cache->append_and_attend(
            layer, first,
            {&device, rows, kHeads, std::span(q).subspan(q_at, size_t(rows) * kHeads * kWidth),
             std::span(k).subspan(kv_at, size_t(rows) * kKvHeads * kWidth),
             std::span(v).subspan(kv_at, size_t(rows) * kKvHeads * kWidth)},
            std::span(context).subspan(q_at, size_t(rows) * kHeads * kWidth));
      }
    }
    cache->commit_tokens();
  }
  for (uint32_t row : {0u, 1u, 63u, 64u, 255u, 256u, 299u}) {
    for (uint32_t head = 0; head < kHeads; ++head) {
      const uint32_t kv_head = head / (kHeads / kKvHeads);
      std::vector<double> scores(row + 1), out(kWidth);
      double maximum = -INFINITY, sum = 0;
      for (uint32_t j = 0; j <= row; ++j) {
        for (uint32_t d = 0; d < kWidth; ++d)
          scores[j] +=
              double(q[(row * kHeads + head) * kWidth + d]) * k[(j * kKvHeads + kv_head) * kWidth + d];
        scores[j] /= std::sqrt(double(kWidth));
        maximum = std::max(maximum, scores[j]);
      }
      for (uint32_t j = 0; j <= row; ++j) {
        const double p = std::exp(scores[j] - maximum);
        sum += p;
        for (uint32_t d = 0; d < kWidth; ++d) out[d] += p * v[(j * kKvHeads + kv_head) * kWidth + d];
      }
      for (uint32_t d = 0; d < kWidth; ++d)
        ASSERT_NEAR(context[(row * kHeads + head) * kWidth + d], out[d] / sum, 2e-6)
            << row << ' ' << head << ' ' << d;
    }
  }
  std::vector<float> keys(kKvHeads * kWidth), read(kKvHeads * kWidth);
  device.kernels->kv_read(cache->view(), 1, 299, keys.data(), read.data());
  EXPECT_EQ(keys, std::vector<float>(k.end() - kKvHeads * kWidth, k.end()));
  EXPECT_EQ(read, std::vector<float>(v.end() - kKvHeads * kWidth, v.end()));
}

TEST_P(AppendAndAttend, MisuseLeavesTheTransactionOpen) {
  const Device& device = test::device_of(GetParam());
  PagedKvCachePool factory(device, {kLayers, kKvHeads, kWidth, kPage}, 64);
  auto cache = factory.create();
  const uint32_t n = 4;
  auto q = values(n * kHeads * kWidth, 1), k = values(n * kKvHeads * kWidth, 2),
       v = values(n * kKvHeads * kWidth, 3);
  std::vector<float> context(q.size());
  AttentionInput input{&device, n, kHeads, q, k, v};
  const auto status = [&](uint32_t layer, uint32_t first, const AttentionInput& in, std::span<float> out) {
    return failure_of([&] { cache->append_and_attend(layer, first, in, out); }).status;
  };
  EXPECT_EQ(status(0, 0, input, context), Status::invalid_state) << "no transaction";
  cache->begin_tokens(n);
  EXPECT_EQ(status(kLayers, 0, input, context), Status::out_of_range);
  EXPECT_EQ(status(1, 0, input, context), Status::invalid_state) << "layer 0 comes first";
  EXPECT_EQ(status(0, 1, input, context), Status::invalid_state) << "row 0 comes first";
  AttentionInput other = input;
  other.device = &page_device();
  EXPECT_EQ(status(0, 0, other, context), Status::invalid_argument);
  for (const auto& change :
       {+[](AttentionInput& in) { in.rows = 3; }, +[](AttentionInput& in) { in.rows = 0; },
        +[](AttentionInput& in) { in.heads = 5; }, +[](AttentionInput& in) { in.heads = 0; },
        +[](AttentionInput& in) { in.k = in.k.first(in.k.size() - 1); },
        +[](AttentionInput& in) { in.v = in.q; }}) {
    AttentionInput wrong = input;
    change(wrong);
    EXPECT_EQ(status(0, 0, wrong, context), Status::invalid_argument);
  }
  EXPECT_EQ(status(0, 0, input, std::span(context).first(5)), Status::invalid_argument);
  v[7] = NAN;
  EXPECT_EQ(status(0, 0, input, context), Status::non_finite);
  v[7] = 0;
  EXPECT_EQ(cache->open_tokens(), n);
  EXPECT_EQ(status(0, 0, input, context), Status::ok);
  EXPECT_EQ(status(0, 0, input, context), Status::invalid_state) << "written already";
  EXPECT_EQ(failure_of([&] { cache->commit_tokens(); }).message, "layer 1 has 0 of the transaction's 4 rows");
  EXPECT_EQ(status(1, 0, input, context), Status::ok);
  cache->commit_tokens();
  EXPECT_EQ(cache->length(), n);
  cache->begin_token();
  cache->abort_token();
  EXPECT_EQ(cache->length(), n);
}

INSTANTIATE_TEST_SUITE_P(Isa, AppendAndAttend, testing::ValuesIn(test::available_isas()));

}  // namespace
}  // namespace riftco
