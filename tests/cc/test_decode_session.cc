#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>

#include "serve/decode_session.h"
#include "serve_support.h"

namespace riftco {
namespace {

using test::Failure;
using test::failure_of;

constexpr uint32_t kVocabulary = 64, kBadToken = 63;

std::shared_ptr<DecoderOnlyTransformer> tiny_model(uint32_t context = 64, uint32_t threads = 1) {
  return test::random_model(test::tiny_config(context), DType::f32,
                            {.threads = threads, .last_token_overflows = true});
}

std::vector<uint32_t> tokens_of(size_t count, uint64_t seed = 3) {
  return test::random_tokens(count, kBadToken, seed);
}

std::vector<float> prefill(DecodeSession& session, std::span<const uint32_t> tokens) {
  std::vector<float> logits(session.model().config().vocabulary_size);
  session.prefill(tokens, logits);
  return logits;
}

std::vector<float> step(DecodeSession& session, uint32_t token) { return prefill(session, {&token, 1}); }

// What a failed call must leave alone: everything that can be seen, and the numbers in the pages.
struct State {
  uint32_t size, open;
  std::vector<uint32_t> pages, references;
  uint64_t free_count, total_references;
  std::vector<float> values;  // keys and values of all positions and layers
  bool operator==(const State&) const = default;
};

State state_of(const DecodeSession& session) {
  const KeyValueCache& cache = session.cache();
  const KvPagePool& pool = session.factory().pool();
  State s{session.size(),
          cache.open_tokens(),
          {cache.pages().begin(), cache.pages().end()},
          {},
          pool.usage().free_count,
          pool.audit(),
          {}};
  for (uint32_t page : s.pages) s.references.push_back(pool.references(page));
  const KvGeometry& g = cache.geometry();
  std::vector<float> keys(g.kv_heads * g.head_width), values(keys.size());
  for (uint32_t layer = 0; layer < g.layers; ++layer) {
    for (uint32_t position = 0; position < session.size(); ++position) {
      pool.device().kernels->kv_read(cache.view(), layer, position, keys.data(), values.data());
      s.values.insert(s.values.end(), keys.begin(), keys.end());
      s.values.insert(s.values.end(), values.begin(), values.end());
    }
  }
  return s;
}

TEST(DecodeSession, DefaultsArePagedBlocksOfSixteen) {
  DecodeSession session(tiny_model(), {});
  EXPECT_EQ(session.cache_kind(), KvCacheKind::paged);
  EXPECT_EQ(session.block_size(), 16u);
  EXPECT_EQ(session.capacity(), 64u);
  EXPECT_EQ(session.size(), 0u);
  EXPECT_EQ(session.factory().usage().page_count, 4u) << "one full context";
}

TEST(DecodeSession, OptionsChooseTheCache) {
  const auto model = tiny_model();
  DecodeSession contiguous(model, {.kind = KvCacheKind::contiguous});
  EXPECT_EQ(contiguous.cache_kind(), KvCacheKind::contiguous);
  EXPECT_EQ(contiguous.block_size(), 64u);
  EXPECT_EQ(DecodeSession(model, {.kind = KvCacheKind::contiguous, .page_size = 0, .maximum_context = 9})
                .block_size(),
            9u);
  EXPECT_EQ(DecodeSession(model, {.page_size = 1000, .maximum_context = 9}).capacity(), 9u);
  const auto failure = [&](const DecodeSessionOptions& options) {
    return failure_of([&] { DecodeSession(model, options); });
  };
  EXPECT_EQ(failure({.page_size = 0}).status, Status::invalid_argument);
  EXPECT_EQ(failure({.page_size = uint64_t(1) << 32}).status, Status::out_of_range);
  EXPECT_EQ(failure({.maximum_context = 65}).message,
            "a maximum context of 65 tokens is more than the model's 64");
  EXPECT_EQ(failure({.kind = KvCacheKind::contiguous, .page_size = 8}).status, Status::invalid_argument);
  EXPECT_EQ(failure({.kind = KvCacheKind(2)}).status, Status::invalid_argument);
  EXPECT_EQ(failure_of([&] {
              make_kv_cache_factory(*model, {.kind = KvCacheKind::contiguous, .page_count = 2});
            }).status,
            Status::invalid_argument);
  EXPECT_EQ(failure_of([&] { make_kv_cache_factory(*model, {.page_count = UINT64_MAX}); }).status,
            Status::out_of_range);
  EXPECT_EQ(model->session_count(), 1u) << "a failed creation leaves no session";
}

TEST(DecodeSession, FactoryServesSessionsOfModelsOfItsGeometry) {
  const auto model = tiny_model(), same = tiny_model();
  const auto pool = make_kv_cache_factory(*model, {.page_size = 8, .page_count = 3, .maximum_context = 40});
  DecodeSession a(model, {.factory = pool}),
      b(same, {.page_size = 8, .maximum_context = 20, .factory = pool});
  EXPECT_EQ(a.capacity(), 40u);
  EXPECT_EQ(b.capacity(), 20u);
  EXPECT_EQ(a.block_size(), 8u);
  prefill(a, tokens_of(16));
  prefill(b, tokens_of(8));
  const State before = state_of(a);
  const Failure exhausted = failure_of([&] { step(a, 1); });
  EXPECT_EQ(exhausted.status, Status::cache_exhausted);
  EXPECT_EQ(exhausted.message, "1 pages of 8 tokens are needed, 0 of the pool's 3 are free");
  EXPECT_EQ(state_of(a), before);

  const auto failure = [&](const DecodeSessionOptions& options) {
    return failure_of([&] { DecodeSession(model, options); });
  };
  EXPECT_EQ(failure({.page_size = 4, .factory = pool}).status, Status::invalid_argument);
  EXPECT_EQ(failure({.kind = KvCacheKind::contiguous, .factory = pool}).status, Status::invalid_argument);
  EXPECT_EQ(failure({.maximum_context = 41, .factory = pool}).status, Status::out_of_range);
  const auto contiguous = make_kv_cache_factory(*model, {.kind = KvCacheKind::contiguous});
  EXPECT_EQ(DecodeSession(model, {.factory = contiguous}).cache_kind(), KvCacheKind::contiguous);

  auto config = test::tiny_config();
  config.layer_count = 2;
  const auto other = test::random_model(config, DType::f32);
  const Failure mismatch = failure_of([&] { DecodeSession(other, {.factory = pool}); });
  EXPECT_EQ(mismatch.status, Status::invalid_argument);
  EXPECT_NE(mismatch.message.find("2 layers, 2 key/value heads of width 16"), std::string::npos)
      << mismatch.message;
  EXPECT_NE(mismatch.message.find("1 layers, 2 key/value heads of width 16"), std::string::npos)
      << mismatch.message;
  EXPECT_EQ(failure_of([&] { DecodeSession(tiny_model(30), {.factory = pool}); }).status,
            Status::invalid_argument);
}

TEST(DecodeSession, StepsEqualOnePrefill) {
  const auto model = tiny_model();
  DecodeSession a(model, {}), b(model, {});
  const auto tokens = tokens_of(50);
  std::vector<float> last;
  for (uint32_t token : tokens) last = step(a, token);
  EXPECT_EQ(prefill(b, tokens), last);
  EXPECT_EQ(a.size(), 50u);
  EXPECT_EQ(state_of(a).values, state_of(b).values);
}

TEST(DecodeSession, MisuseChangesNothing) {
  const auto model = tiny_model(8);
  DecodeSession session(model, {.page_size = 4}), twin(model, {});
  const auto tokens = tokens_of(6);
  prefill(session, tokens);
  prefill(twin, tokens);
  const State before = state_of(session);
  std::vector<float> logits(kVocabulary), small(kVocabulary - 1);
  const auto failure = [&](std::vector<uint32_t> t, std::span<float> out) {
    return failure_of([&] { session.prefill(t, out); });
  };
  EXPECT_EQ(failure({}, logits).status, Status::invalid_argument);
  const Failure range = failure({1, kVocabulary, 1, 1, 1}, small);
  EXPECT_EQ(range.status, Status::out_of_range) << "arguments are checked before capacity";
  EXPECT_EQ(range.message, "token 64 is not below the vocabulary size 64");
  EXPECT_EQ(failure({UINT32_MAX}, logits).status, Status::out_of_range);
  EXPECT_EQ(failure({1, 1, 1}, small).status, Status::buffer_too_small)
      << "the buffer is checked before the context";
  EXPECT_EQ(failure({1}, {}).status, Status::buffer_too_small);
  EXPECT_EQ(failure({1, 1, 1}, logits).status, Status::context_full);
  EXPECT_EQ(failure({1, kBadToken}, logits).status, Status::non_finite);
  EXPECT_EQ(failure_of([&] { session.truncate(7); }).status, Status::out_of_range);
  EXPECT_EQ(state_of(session), before);
  EXPECT_EQ(step(session, 5), step(twin, 5));
}

TEST(DecodeSession, LogitsBeyondARowAreLeftAlone) {
  DecodeSession session(tiny_model(), {});
  std::vector<float> logits(kVocabulary + 5, 123.0f);
  session.step(1, logits);
  EXPECT_EQ(std::vector<float>(logits.end() - 5, logits.end()), std::vector<float>(5, 123.0f));
}

TEST(DecodeSession, PrefillOverManyBlocksIsOneTransaction) {
  const auto model = tiny_model(600);
  DecodeSession session(model, {}), twin(model, {});
  auto tokens = tokens_of(599);
  prefill(session, std::span(tokens).first(7));
  prefill(twin, std::span(tokens).first(7));
  const State before = state_of(session);
  for (size_t bad :
       {size_t(0), size_t(255), size_t(256), size_t(590)}) {  // in the first, second and third block
    std::vector<uint32_t> rest(tokens.begin() + 7, tokens.end());
    rest[bad] = kBadToken;
    EXPECT_EQ(failure_of([&] { prefill(session, rest); }).status, Status::non_finite);
    EXPECT_EQ(state_of(session), before) << bad;
  }
  EXPECT_EQ(prefill(session, std::span(tokens).subspan(7)), prefill(twin, std::span(tokens).subspan(7)));
}

TEST(DecodeSession, StaleNumbersInPagesAreNeverRead) {
  const auto model = tiny_model();
  const auto tokens = tokens_of(40);
  DecodeSession clean(model, {});
  const auto expected = prefill(clean, tokens);
  const auto pool = make_kv_cache_factory(*model, {.page_size = 5});
  DecodeSession session(model, {.factory = pool});
  prefill(session, tokens_of(60, 8));
  session.reset();
  pool->pool().poison_free_pages();
  std::vector<float> logits;
  for (uint32_t token : std::span(tokens).first(13)) logits = step(session, token);
  session.truncate(11);
  prefill(session, std::span(tokens).subspan(11, 9));
  auto fork = session.fork();
  EXPECT_EQ(prefill(session, std::span(tokens).subspan(20)), expected);
  EXPECT_EQ(prefill(*fork, std::span(tokens).subspan(20)), expected);
}

TEST(DecodeSession, TruncateForkAndResetEqualAReplay) {
  const auto model = tiny_model();
  DecodeSession session(model, {.page_size = 4});
  const auto tokens = tokens_of(30);
  prefill(session, tokens);
  const auto replay = [&](size_t kept, uint32_t next) {
    DecodeSession fresh(model, {.kind = KvCacheKind::contiguous});
    if (kept) prefill(fresh, std::span(tokens).first(kept));
    return step(fresh, next);
  };
  auto fork = session.fork();
  EXPECT_EQ(fork->size(), 30u);
  EXPECT_EQ(fork->capacity(), session.capacity());
  EXPECT_EQ(step(*fork, 9), replay(30, 9));
  EXPECT_EQ(step(session, 11), replay(30, 11));
  fork->truncate(17);
  EXPECT_EQ(step(*fork, 2), replay(17, 2));
  fork->truncate(16);
  EXPECT_EQ(step(*fork, 4), replay(16, 4));
  session.reset();
  EXPECT_EQ(session.size(), 0u);
  EXPECT_EQ(step(session, 6), replay(0, 6));
  fork->truncate(16);
  EXPECT_EQ(step(*fork, 8), replay(16, 8)) << "a fork outlives the reset of its source";
}

TEST(DecodeSession, CancelChangesNothing) {
  const auto model = tiny_model(600);
  CancelFlag cancel;
  DecodeSession session(model, {.cancel = &cancel}), other(model, {});
  const auto tokens = tokens_of(500);
  prefill(session, std::span(tokens).first(9));
  const State before = state_of(session);
  cancel.set();
  EXPECT_EQ(failure_of([&] { step(session, 1); }).status, Status::cancelled);
  EXPECT_EQ(failure_of([&] { prefill(session, tokens); }).status, Status::cancelled);
  std::vector<float> logits(2 * kVocabulary);
  DecodeSession* const both[] = {&other, &session};
  EXPECT_EQ(failure_of([&] {
              DecodeSession::step_many(both, std::array{1u, 2u}, logits);
            }).status,
            Status::cancelled);
  EXPECT_EQ(other.size(), 0u);
  EXPECT_EQ(state_of(session), before);
  EXPECT_EQ(failure_of([&] { step(*session.fork(), 1); }).status, Status::cancelled)
      << "a fork keeps the flag";
  cancel.reset();
  prefill(session, std::span(tokens).subspan(9));
  EXPECT_EQ(session.size(), 500u);
}

TEST(DecodeSession, AValueTooLargeForF16UndoesTheStep) {
  const auto model = test::random_model(test::tiny_config(), DType::f32, {.value_gain = 1e5f});
  const auto tokens = tokens_of(20);
  DecodeSession f32(model, {}), bf16(model, {.element = DType::bf16}), f16(model, {.element = DType::f16});
  prefill(f32, tokens);
  prefill(bf16, tokens);
  const State before = state_of(f16);
  EXPECT_EQ(failure_of([&] { prefill(f16, tokens); }).status, Status::non_finite);
  EXPECT_EQ(state_of(f16), before);
}

// A device whose kernels count their calls and set a flag at one of them.
CancelFlag counted_flag;
std::atomic<int> kernel_calls{0}, calls_until_set{0}, calls_after{0};

template <auto Kernel>
struct Counted;
template <class... Args, void (*KernelTable::*Kernel)(Args...)>
struct Counted<Kernel> {
  static void call(Args... args) {
    (test::best_device().kernels->*Kernel)(args...);
    if (++kernel_calls > calls_until_set) ++calls_after;
    if (kernel_calls == calls_until_set) counted_flag.set();
  }
};

const Device& counting_device() {
  static const KernelTable table = [] {
    KernelTable t = *test::best_device().kernels;
    t.norm = Counted<&KernelTable::norm>::call;
    t.linear = Counted<&KernelTable::linear>::call;
    t.pack_operand = Counted<&KernelTable::pack_operand>::call;
    t.activate = Counted<&KernelTable::activate>::call;
    t.attend = Counted<&KernelTable::attend>::call;
    return t;
  }();
  static const Device device{Backend::cpu, "counting", &table, nullptr};
  return device;
}

// In units of work: after the flag is set, at most the rest of one layer of one block of rows is computed.
TEST(DecodeSession, CancelIsSeenWithinOneLayerOfOneBlock) {
  ModelConfig config = test::tiny_config(600);
  config.layer_count = 6;
  const auto model = test::random_model(config, DType::f32, {.device = counting_device()});
  DecodeSession session(model, {.cancel = &counted_flag});
  const auto run = [&](int until) {
    kernel_calls = calls_after = 0;
    calls_until_set = until;
    counted_flag.reset();
    const Failure failure = failure_of([&] { prefill(session, tokens_of(600)); });
    counted_flag.reset();
    return failure.status;
  };
  ASSERT_EQ(run(-1), Status::ok);
  const int blocks = 3, attention = 2 * (256 / 16);  // units of a full block: rows x key/value heads
  const int layer = 2 + 4 + 1 + 1 + attention;       // norms, products, packing of the context, activation
  ASSERT_LE(kernel_calls.load(), blocks * (6 * layer + 2));
  for (int until : {1, 7, layer, 3 * layer, 6 * layer + 5, 9 * layer}) {
    session.reset();
    ASSERT_EQ(run(until), Status::cancelled) << until;
    EXPECT_LE(calls_after.load(), layer + 4) << "set at call " << until;
    EXPECT_EQ(session.size(), 0u);
  }
}

TEST(DecodeSession, AnySessionOfABatchCancelsIt) {
  const auto model = test::random_model(test::tiny_config(), DType::f32, {.device = counting_device()});
  CancelFlag quiet;
  DecodeSession first(model, {.cancel = &counted_flag}), second(model, {.cancel = &quiet});
  DecodeSession* const both[] = {&first, &second};
  std::vector<float> logits(2 * kVocabulary);
  counted_flag.reset();
  kernel_calls = calls_after = 0, calls_until_set = 1;  // within the only block
  EXPECT_EQ(failure_of([&] {
              DecodeSession::step_many(both, std::array{1u, 2u}, logits);
            }).status,
            Status::cancelled);
  EXPECT_EQ(second.size(), 0u);
  EXPECT_LE(calls_after.load(), 11) << "the rest of the layer, and not the head";
  counted_flag.reset();
}

// The head's products of the hidden state, in the kernels' order, are the logits.
TEST(DecodeSession, LogitsAreTheHeadTimesTheHiddenState) {
  for (bool tied : {false, true}) {
    ModelConfig config = test::llama_config();
    config.tied_head = tied;
    const auto model = test::random_model(config, DType::f32);
    const auto tokens = test::random_tokens(300, config.vocabulary_size, 5);
    DecodeSession session(model, {}), other(model, {});
    std::vector<float> states(300 * config.width + 1, 7.0f), logits(config.vocabulary_size);
    session.hidden_states(tokens, 0, states);
    EXPECT_EQ(states.back(), 7.0f);
    const auto& parameters = model->weights().parameters();
    const size_t head = size_t(std::find_if(parameters.begin(), parameters.end(),
                                            [&](const ParameterInfo& p) {
                                              return p.name == (tied ? "embedding.token" : "head.weight");
                                            }) -
                               parameters.begin());
    for (size_t row : {size_t(0), size_t(1), size_t(255), size_t(299)}) {
      other.reset();
      other.prefill(std::span(tokens).first(row + 1), logits);
      for (uint32_t token : {0u, 17u, config.vocabulary_size - 1}) {
        std::vector<float> weights(config.width);
        model->weights().get_rows(head, token, 1, reinterpret_cast<std::byte*>(weights.data()));
        float expected = 0;
        for (uint32_t k = 0; k < config.width; ++k)
          expected = std::fma(states[row * config.width + k], weights[k], expected);
        EXPECT_EQ(logits[token], expected) << row << " " << token;
      }
    }
    EXPECT_EQ(failure_of([&] {
                session.hidden_states(std::array{1u, 2u}, 2, states);
              }).status,
              Status::out_of_range);
    EXPECT_EQ(failure_of([&] {
                session.hidden_states(std::array{1u, 2u}, 0, std::span(states).first(2 * config.width - 1));
              }).status,
              Status::buffer_too_small);
    EXPECT_EQ(session.size(), 300u);
  }
}

TEST(DecodeSession, StepManyEqualsSteps) {
  const auto model = tiny_model();
  constexpr size_t kSessions = 5;
  std::vector<std::unique_ptr<DecodeSession>> batch, alone;
  std::vector<DecodeSession*> pointers;
  for (size_t i = 0; i < kSessions; ++i) {
    for (auto* list : {&batch, &alone}) {
      list->push_back(std::make_unique<DecodeSession>(model, DecodeSessionOptions{.page_size = 1 + i}));
      if (i > 0) prefill(*list->back(), tokens_of(7 * i, i));
    }
    pointers.push_back(batch.back().get());
  }
  std::vector<float> logits(kSessions * kVocabulary + 3, 7.0f);
  for (uint32_t round = 0; round < 6; ++round) {
    const auto tokens = tokens_of(kSessions, 100 + round);
    DecodeSession::step_many(pointers, tokens, logits);
    for (size_t i = 0; i < kSessions; ++i)
      EXPECT_EQ(std::vector<float>(logits.begin() + ptrdiff_t(i * kVocabulary),
                                   logits.begin() + ptrdiff_t((i + 1) * kVocabulary)),
                step(*alone[i], tokens[i]));
  }
  EXPECT_EQ(logits.back(), 7.0f);
}

TEST(DecodeSession, StepManyTakesMoreSessionsThanABlockHasRows) {
  const auto model = tiny_model();
  const auto pool = make_kv_cache_factory(*model, {.page_count = 300});
  std::vector<std::unique_ptr<DecodeSession>> sessions;
  std::vector<DecodeSession*> pointers;
  for (size_t i = 0; i < 300; ++i) {
    sessions.push_back(std::make_unique<DecodeSession>(model, DecodeSessionOptions{.factory = pool}));
    pointers.push_back(sessions.back().get());
  }
  auto tokens = tokens_of(300);
  std::vector<float> logits(300 * kVocabulary);
  tokens[299] = kBadToken;
  EXPECT_EQ(failure_of([&] { DecodeSession::step_many(pointers, tokens, logits); }).status,
            Status::non_finite);
  EXPECT_EQ(pool->pool().audit(), 0u);
  tokens[299] = 1;
  DecodeSession::step_many(pointers, tokens, logits);
  DecodeSession alone(model, {});
  EXPECT_EQ(step(alone, 1), std::vector<float>(logits.end() - kVocabulary, logits.end()));
}

TEST(DecodeSession, StepManyIsAllOrNothing) {
  const auto model = tiny_model(8), other_model = tiny_model(8);
  const auto pool = make_kv_cache_factory(*model, {.page_size = 2, .page_count = 9});
  DecodeSession a(model, {.factory = pool}), b(model, {.factory = pool}), full(model, {.factory = pool}),
      foreign(other_model, {});
  prefill(a, tokens_of(2));
  prefill(b, tokens_of(5));
  prefill(full, tokens_of(8));
  auto fork = b.fork();
  const std::vector<State> before{state_of(a), state_of(b), state_of(full), state_of(*fork)};
  std::vector<float> logits(4 * kVocabulary);
  const auto failure = [&](std::vector<DecodeSession*> sessions, std::vector<uint32_t> tokens, size_t room) {
    const Failure result = failure_of(
        [&] { DecodeSession::step_many(sessions, tokens, std::span(logits).first(room * kVocabulary)); });
    EXPECT_EQ((std::vector<State>{state_of(a), state_of(b), state_of(full), state_of(*fork)}), before);
    return result;
  };
  EXPECT_EQ(failure({}, {}, 4).status, Status::invalid_argument);
  EXPECT_EQ(failure({&a, nullptr}, {1, 2}, 4).message, "session 1 is null");
  EXPECT_EQ(failure({&a, &b}, {1}, 4).status, Status::invalid_argument);
  EXPECT_EQ(failure({&a, &b, &a}, {1, 2, 3}, 4).message, "session 2 is in the batch twice");
  EXPECT_EQ(failure({&a, &foreign}, {1, 2}, 4).message, "session 1 is of another model than session 0");
  EXPECT_EQ(failure({&a, &b}, {1, kVocabulary}, 1).status, Status::out_of_range);
  EXPECT_EQ(failure({&a, &b}, {1, 2}, 1).status, Status::buffer_too_small);
  EXPECT_EQ(failure({&a, &full}, {1, 2}, 2).status, Status::context_full);
  EXPECT_EQ(failure({&a}, {kBadToken}, 1).status, Status::non_finite);
  // 8 of the 9 pages are taken; `a` and the tail shared by `b` and `fork` need one each.
  EXPECT_EQ(failure({&a, &b}, {1, 2}, 2).status, Status::cache_exhausted);
  EXPECT_EQ(failure({&b, fork.get()}, {1, 2}, 2).status, Status::cache_exhausted);
  DecodeSession::step_many(std::array{&a}, std::array{1u}, logits);
  EXPECT_EQ(a.size(), 3u);
}

TEST(DecodeSession, MemoryFailuresChangeNothing) {
  const auto model = tiny_model();
  const auto tokens = tokens_of(20);
  DecodeSession twin(model, {});
  prefill(twin, std::span(tokens).first(5));
  auto twin_fork = twin.fork();
  std::vector<float> logits(2 * kVocabulary), expected(2 * kVocabulary);
  DecodeSession::step_many(std::array{&twin, twin_fork.get()}, std::array{1u, 2u}, expected);
  const auto expected_prefill = prefill(twin, std::span(tokens).subspan(5));
  for (test::AllocationHook fail_after : test::kAllocationHooks) {
    const auto pool = make_kv_cache_factory(*model, {.page_size = 3, .page_count = 60});
    DecodeSession a(model, {.factory = pool});
    prefill(a, std::span(tokens).first(5));
    auto b = a.fork();
    const State before_a = state_of(a), before_b = state_of(*b);
    const auto unchanged = [&] {
      EXPECT_EQ(state_of(a), before_a);
      EXPECT_EQ(state_of(*b), before_b);
    };
    const std::array sessions{&a, b.get()};
    EXPECT_GE(test::fail_every_allocation(
                  fail_after,
                  [&] {
                    DecodeSession::step_many(sessions, std::array{1u, 2u}, logits);
                  },
                  unchanged),
              1);
    EXPECT_EQ(logits, expected);
    const State before = state_of(a);
    EXPECT_GE(test::fail_every_allocation(
                  fail_after, [&] { a.prefill(std::span(tokens).subspan(5), logits); },
                  [&] { EXPECT_EQ(state_of(a), before); }),
              1);
    EXPECT_EQ(std::vector<float>(logits.begin(), logits.begin() + kVocabulary), expected_prefill);
  }
}

TEST(DecodeSession, CreationFailsCleanly) {
  const auto model = tiny_model();
  EXPECT_GE(test::fail_every_allocation(
                &test::fail_new_after, [&] { DecodeSession(model, {}); },
                [&] { EXPECT_EQ(model->session_count(), 0u); }),
            5);
  DecodeSession session(model, {});
  prefill(session, tokens_of(20));
  const State before = state_of(session);
  EXPECT_GE(
      test::fail_every_allocation(
          &test::fail_new_after, [&] { session.fork(); }, [&] { EXPECT_EQ(state_of(session), before); }),
      3);
}

TEST(DecodeSession, SteadyStateAllocatesNothing) {
  for (uint32_t threads : {1u, 2u}) {
    const auto model = tiny_model(600, threads);
    const auto pool = make_kv_cache_factory(*model, {.page_count = 60});
    DecodeSession session(model, {.factory = pool}), second(model, {.factory = pool});
    const auto tokens = tokens_of(400);
    std::vector<float> logits(2 * kVocabulary);
    DecodeSession* const both[] = {&session, &second};
    const auto work = [&] {
      session.prefill(std::span(tokens).first(300), logits);
      for (uint32_t token : std::span(tokens).first(15)) session.step(token, logits);
      for (uint32_t token : std::span(tokens).first(15))
        DecodeSession::step_many(both, std::array{token, token}, logits);
      session.reset();
      second.reset();
    };
    work();
    const uint64_t buffers = buffer_allocations(), news = test::new_calls();
    work();
    EXPECT_EQ(buffer_allocations(), buffers);
    EXPECT_EQ(test::new_calls(), news) << threads << " threads";
  }
}

TEST(DecodeSession, ModelCountsItsSessionsAndOutlivesTheirs) {
  auto model = tiny_model();
  EXPECT_EQ(model->session_count(), 0u);
  auto a = std::make_unique<DecodeSession>(model, DecodeSessionOptions{});
  auto b = a->fork();
  EXPECT_EQ(model->session_count(), 2u);
  a.reset();
  EXPECT_EQ(model->session_count(), 1u);
  model.reset();
  step(*b, 1);
}

TEST(DecodeSession, SequenceLogitsEqualSteps) {
  const auto model = tiny_model(300);
  const auto tokens = tokens_of(290);
  std::vector<float> all(tokens.size() * kVocabulary + 4, 9.0f);
  sequence_logits(model, tokens, nullptr, all);
  EXPECT_EQ(std::vector<float>(all.end() - 4, all.end()), std::vector<float>(4, 9.0f));
  DecodeSession session(model, {});
  for (size_t i = 0; i < tokens.size(); ++i)
    ASSERT_EQ(std::vector<float>(all.begin() + ptrdiff_t(i * kVocabulary),
                                 all.begin() + ptrdiff_t((i + 1) * kVocabulary)),
              step(session, tokens[i]));
  const auto status = [&](std::vector<uint32_t> t, size_t room, const CancelFlag* cancel = nullptr) {
    return failure_of([&] { sequence_logits(model, t, cancel, std::span(all).first(room)); }).status;
  };
  EXPECT_EQ(status({}, 0), Status::invalid_argument);
  EXPECT_EQ(status({1, 64}, 500), Status::out_of_range);
  EXPECT_EQ(status({1, 2}, 2 * kVocabulary - 1), Status::buffer_too_small);
  EXPECT_EQ(status({1, kBadToken}, 500), Status::non_finite);
  std::vector<float> large(301 * kVocabulary);
  EXPECT_EQ(failure_of([&] { sequence_logits(model, tokens_of(301), nullptr, large); }).message,
            "301 tokens do not fit the model's context of 300");
  CancelFlag cancel;
  cancel.set();
  EXPECT_EQ(status({1, 2}, 500, &cancel), Status::cancelled);
  EXPECT_EQ(model->session_count(), 1u);
}

}  // namespace
}  // namespace riftco
