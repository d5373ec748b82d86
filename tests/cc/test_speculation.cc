// Speculation changes nothing but the speed: every test compares with a generation without it, or with fresh sessions.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "serve/generation.h"
#include "serve_support.h"

namespace riftco {
namespace {

using test::Failure;
using test::failure_of;

// --- guesses

std::vector<uint32_t> tokens_of(std::string_view text) { return {text.begin(), text.end()}; }

std::string guess(PromptLookup& lookup, std::string_view text, uint64_t room = 100) {
  std::vector<uint32_t> out;
  lookup.guess(tokens_of(text), room, out);
  return {out.begin(), out.end()};
}

// What a lookup guesses after it was right often enough to guess as far as it may.
std::string confident_guess(std::string_view text, uint64_t room = 100, uint32_t longest = 8) {
  PromptLookup lookup(longest, 1000);
  for (int i = 0; i < 8; ++i) lookup.learn(1, 1);
  return guess(lookup, text, room);
}

TEST(PromptLookup, GuessesWhatFollowedTheSameTokens) {
  EXPECT_EQ(confident_guess("the cat sat; the cat"), " sat; th");
  EXPECT_EQ(confident_guess("the cat sat; the cat", 3), " sa");
  EXPECT_EQ(confident_guess("the cat sat; the cat", 0), "");
  EXPECT_EQ(confident_guess("the cat sat; a dog"), "");
  EXPECT_EQ(confident_guess("xy1 xy2 xy"), "2 xy2 xy") << "the newest place";
  EXPECT_EQ(confident_guess("abcd1 bcd2 cd3 abcd"), "1 bcd2 c") << "the longest run";
  EXPECT_EQ(confident_guess("ababab"), "abababab") << "a repetition goes on";
  EXPECT_EQ(confident_guess("aaa"), "aaaaaaaa");
  EXPECT_EQ(confident_guess("x1yx"), "") << "one token is no run";
  EXPECT_EQ(confident_guess(""), "");
  PromptLookup none;
  EXPECT_EQ(guess(none, "aaaaaa"), "");
}

// What follows `at` in a text of `end` tokens, itself repeated.
std::vector<uint32_t> continuation(std::span<const uint32_t> text, size_t end, size_t at, size_t count) {
  std::vector<uint32_t> out;
  for (size_t i = at; i < at + count; ++i) out.push_back(i < end ? text[i] : out[i - end]);
  return out;
}

// Against a plain search, on texts that grow. Runs that share a slot are forgotten, few of them unless the table is too
// small; what is guessed instead is still what followed a shorter run.
TEST(PromptLookup, IsAPlainSearchThatForgets) {
  for (const uint64_t size : {10000u, 1u}) {
    size_t equal = 0, different = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<uint32_t> text = test::random_tokens(300, 6, seed);
      PromptLookup lookup(4, size);
      lookup.learn(1, 1);
      lookup.learn(1, 1);
      for (size_t end = 1; end <= text.size(); end += 1 + seed % 3) {
        std::vector<uint32_t> best, out;
        bool known = false;
        lookup.guess(std::span(text).first(end), 4, out);
        for (size_t n = 4; n >= 2; --n) {
          for (size_t at = end - 1; at >= n && at < end; --at) {
            if (!std::equal(text.begin() + ptrdiff_t(end - n), text.begin() + ptrdiff_t(end),
                            text.begin() + ptrdiff_t(at - n)))
              continue;
            const std::vector<uint32_t> found = continuation(text, end, at, 4);
            if (best.empty()) best = found;
            known = known || out == found;
          }
        }
        EXPECT_TRUE(out.empty() || known) << "seed " << seed << " end " << end;
        (out == best ? equal : different)++;
      }
    }
    EXPECT_GT(equal, size == 1 ? 100u : 50 * different);
    EXPECT_GT(different, size == 1 ? 100u : 0u);
  }
}

TEST(PromptLookup, LearnsHowFarToGuess) {
  const std::string text = "abcdefghijklmnopqrstuvwxyz abcd";
  PromptLookup lookup(6, 1000);
  const auto length = [&] { return guess(lookup, text).size(); };
  EXPECT_EQ(length(), 1u);
  lookup.learn(1, 1);
  EXPECT_EQ(length(), 2u);
  lookup.learn(2, 2);
  EXPECT_EQ(length(), 4u);
  lookup.learn(4, 4);
  EXPECT_EQ(length(), 6u) << "the most";
  lookup.learn(6, 3);
  EXPECT_EQ(length(), 3u);
  lookup.learn(0, 0);
  EXPECT_EQ(length(), 3u) << "nothing was guessed";
  for (const size_t pause : {0u, 1u, 3u, 7u, 15u, 31u, 31u}) {  // after every guess in vain
    lookup.learn(length(), 0);
    for (size_t i = 0; i < pause; ++i) EXPECT_EQ(length(), 0u) << pause;
    EXPECT_EQ(length(), 1u);
  }
  lookup.learn(1, 1);
  EXPECT_EQ(length(), 2u) << "one that comes true ends the pauses";
}

// --- generation

constexpr uint32_t kVocabulary = 265;  // larger than the byte tokenizer's

ModelConfig small_config(uint32_t context, PositionKind position = PositionKind::learned) {
  ModelConfig config = test::tiny_config(context);
  config.vocabulary_size = kVocabulary;
  config.position = position;
  if (position == PositionKind::rotary) config.rotary_width = config.head_width;
  return config;
}

std::shared_ptr<DecoderOnlyTransformer> small_model(uint32_t context = 64,
                                                    PositionKind position = PositionKind::learned) {
  return test::random_model(small_config(context, position), DType::f32, {.tokenizer = byte_tokenizer()});
}

// All that a generation tells, and what it leaves in its cache.
struct Output {
  std::vector<std::string> pieces;
  std::vector<uint32_t> tokens;
  std::vector<std::array<float, 2>> probabilities;
  std::vector<std::vector<std::array<float, 3>>> alternatives;
  Finish finish = Finish::none;
  uint64_t cached = 0, rollovers = 0;
  bool operator==(const Output&) const = default;
};

void take(Generator& generator, Output& out) {
  const GenerationPiece piece = generator.next();
  out.pieces.emplace_back(piece.bytes);
  out.tokens.push_back(piece.token);
  out.probabilities.push_back(
      {piece.probability.log_probability, piece.probability.processed_log_probability});
  out.alternatives.emplace_back();
  for (const TokenProbability& one : piece.alternatives)
    out.alternatives.back().push_back({float(one.token), one.log_probability, one.processed_log_probability});
  out.finish = piece.finish;
  if (out.finish == Finish::none) return;
  out.cached = generator.cache().length();
  out.rollovers = generator.stats().rollovers;
}

Output run(Generator& generator, Output out = {}) {
  while (out.finish == Finish::none) take(generator, out);
  return out;
}

Output generate(Generator& generator, std::string_view prompt, GenerationOptions options,
                uint32_t speculation = 0) {
  options.speculation = speculation;
  generator.start(prompt, options);
  return run(generator);
}

const std::string kPrompts[] = {"the cat sat on the mat, the cat sat on the", "abababababab", "x",
                                "one two three one two four one two"};

std::vector<GenerationOptions> many_options() {
  std::vector<GenerationOptions> all{
      {.max_new_tokens = 60},
      {.max_new_tokens = 1},
      {.max_new_tokens = 2},
      {.max_new_tokens = 60, .sampling = {.temperature = 0.4f, .seed = 7}},
      {.max_new_tokens = 60, .sampling = {.temperature = 1, .top_k = 3, .seed = 1}},
      {.max_new_tokens = 60,
       .sampling = {.temperature = 0.8f, .top_k = 40, .top_p = 0.5f, .min_p = 0.1f, .seed = 2}},
      {.max_new_tokens = 60, .sampling = {.temperature = 0.1f, .seed = 3, .alternatives = 5}},
      {.max_new_tokens = 60, .stop_strings = {"zzzzzz", "ab", "t"}},
      {.max_new_tokens = 60, .min_new_tokens = 20, .stop_tokens = {'a', 'b', 't', ' '}},
  };
  GenerationOptions rules{.max_new_tokens = 60};
  rules.rules = {.bias = {{'a', 4.0f}, {'b', 4.0f}, {'c', 3.0f}}, .repetition_penalty = 1.3f};
  all.push_back(rules);
  rules.rules.frequency_penalty = 0.2f;
  rules.rules.presence_penalty = 0.1f;
  rules.rules.penalty_window = 9;
  rules.sampling = {.temperature = 0.5f, .seed = 9};
  all.push_back(rules);
  return all;
}

// Text of few different tokens, of which guesses come true and fail.
const std::string kCopied = "abcd abcd abce abcd abcd abce abcd";

GenerationOptions copying(uint32_t speculation = 0, uint64_t max_new_tokens = 80) {
  GenerationOptions options{.max_new_tokens = max_new_tokens,
                            .sampling = {.temperature = 0.5f, .seed = 5},
                            .speculation = speculation};
  options.rules.bias = {{'a', 9.0f}, {'b', 9.0f}};
  return options;
}

TEST(Speculation, ChangesNothing) {
  uint64_t drafted = 0, accepted = 0;
  for (const PositionKind position : {PositionKind::learned, PositionKind::rotary}) {
    const auto model = small_model(64, position);
    Generator plain(model, nullptr, nullptr);
    std::vector<std::unique_ptr<Generator>> guessing;
    for (const KvCacheFactoryOptions& cache :
         {KvCacheFactoryOptions{}, KvCacheFactoryOptions{.page_size = 1},
          KvCacheFactoryOptions{.page_size = 5}, KvCacheFactoryOptions{.kind = KvCacheKind::contiguous}})
      guessing.push_back(std::make_unique<Generator>(model, nullptr, make_kv_cache_factory(*model, cache)));
    for (GenerationOptions options : many_options()) {
      for (const auto& [rollover, keep] :
           {std::pair(Rollover::window, 0u), {Rollover::keep, 30u}, {Rollover::stop, 0u}}) {
        options.rollover = rollover;
        options.rollover_keep = keep;
        for (const std::string& prompt : kPrompts) {
          const Output expected = generate(plain, prompt, options);
          for (const uint32_t speculation : {1u, 4u, 64u}) {
            Generator& generator = *guessing[(speculation + prompt.size()) % guessing.size()];
            ASSERT_EQ(generate(generator, prompt, options, speculation), expected)
                << prompt << ", speculation " << speculation << ", page "
                << generator.cache().geometry().page_size;
            EXPECT_LE(generator.stats().accepted_tokens, generator.stats().drafted_tokens);
            EXPECT_EQ(generator.stats().new_tokens, expected.tokens.size());
            drafted += generator.stats().drafted_tokens;
            accepted += generator.stats().accepted_tokens;
          }
        }
      }
    }
    EXPECT_EQ(plain.stats().drafted_tokens, 0u);
  }
  EXPECT_GT(accepted, 1000u);
  EXPECT_GT(drafted, accepted + 1000u);
}

// Real shapes: grouped heads, several layers, quantised weights, caches of every element type, several segments of keys.
TEST(Speculation, ThreadsWeightsAndCachesChangeNothing) {
  const struct {
    ModelConfig config;
    DType weights, cache;
  } families[] = {{test::llama_config(), DType::q4_1, DType::f32},
                  {test::llama_config(), DType::q8_0, DType::f16},
                  {test::gpt2_config(), DType::bf16, DType::bf16},
                  {test::window_config(), DType::f32, DType::f32}};
  for (const auto& family : families) {
    uint64_t drafted = 0, accepted = 0;
    const auto generator = [&](uint32_t threads, uint64_t page_size) {
      const auto model = test::random_model(family.config, family.weights,
                                            {.threads = threads, .tokenizer = byte_tokenizer()});
      return std::make_unique<Generator>(
          model, nullptr, make_kv_cache_factory(*model, {.page_size = page_size, .element = family.cache}));
    };
    const auto plain = generator(1, 16), alone = generator(1, 7), together = generator(3, 7);
    std::string prompt = kPrompts[0];
    while (prompt.size() < 300) prompt += ", " + kPrompts[0];
    for (const float temperature : {0.0f, 30.0f}) {
      GenerationOptions options = copying(0, 40);
      options.sampling.temperature = temperature;
      options.sampling.alternatives = 2;
      options.rules.bias = {{'a', 300.0f}, {'b', 300.0f}};
      const Output expected = generate(*plain, prompt, options);
      for (const auto& guessing : {alone.get(), together.get()}) {
        ASSERT_EQ(generate(*guessing, prompt, options, 12), expected);
        drafted += guessing->stats().drafted_tokens;
        accepted += guessing->stats().accepted_tokens;
      }
    }
    EXPECT_GT(drafted, accepted);
    EXPECT_GT(accepted, 0u);
  }
}

// A hook sees the very rows, and what it makes of them is sampled: here it makes a model say a text, so that guesses come
// true and fail where the text says.
TEST(Speculation, HooksSeeAndChangeTheSameRows) {
  const auto model = small_model(200);
  Generator plain(model, nullptr, nullptr), guessing(model, nullptr, nullptr);
  const std::string text =
      "the cat sat. the cat sat. the cat ran. the cat sat. the cat sat. the dog sat. the dog";
  GenerationOptions options{.max_new_tokens = text.size()};
  plain.start("the cat sat.", options);
  options.speculation = 10;
  guessing.start("the cat sat.", options);
  for (const char c : text) {
    EXPECT_TRUE(std::ranges::equal(guessing.logits(), plain.logits()));
    for (Generator* generator : {&plain, &guessing}) generator->logits()[uint8_t(c)] += 100.0f;
    const GenerationPiece expected = plain.next(), piece = guessing.next();
    EXPECT_EQ(piece.token, uint32_t(uint8_t(c)));
    EXPECT_EQ(piece.probability.log_probability, expected.probability.log_probability);
  }
  EXPECT_GT(guessing.stats().accepted_tokens, text.size() / 2);
  EXPECT_GT(guessing.stats().drafted_tokens, guessing.stats().accepted_tokens);
}

TEST(Speculation, AGuessWithoutAFreePageIsLeftOut) {
  const auto model = small_model(128);
  Generator plain(model, nullptr, nullptr);
  const Output expected = generate(plain, kCopied, copying());
  const uint64_t pages = (expected.cached + 3) / 4;
  const auto pool = make_kv_cache_factory(*model, {.page_size = 4, .page_count = pages});
  Generator guessing(model, nullptr, pool);
  EXPECT_EQ(generate(guessing, kCopied, copying(), 20), expected);
  EXPECT_GT(guessing.stats().accepted_tokens, 0u);

  // Another sequence has the rest of the pool from the first step on.
  const uint64_t prompt_pages = (kCopied.size() + 3) / 4;
  const auto tight = make_kv_cache_factory(*model, {.page_size = 4, .page_count = prompt_pages + 8});
  Generator held(model, nullptr, tight);
  DecodeSession other(model, {.page_size = 4, .factory = tight});
  std::vector<float> logits(kVocabulary);
  other.prefill(test::random_tokens(32, 200, 1), logits);
  const GenerationOptions options = copying(20);
  held.start(kCopied, options);
  Output out;
  while (kCopied.size() + out.tokens.size() <= 4 * prompt_pages) take(held, out);
  EXPECT_EQ(failure_of([&] { held.next(); }).status, Status::cache_exhausted);
  other.reset();
  while (kCopied.size() + out.tokens.size() <= 4 * (prompt_pages + 8)) take(held, out);
  EXPECT_EQ(failure_of([&] { held.next(); }).status, Status::cache_exhausted);
  EXPECT_TRUE(std::equal(out.tokens.begin(), out.tokens.end(), expected.tokens.begin()));
  EXPECT_EQ(held.cache().length(), kCopied.size() + out.tokens.size() - 1) << "no guess is left";
}

// The last token of this model cannot be decoded; it is in the part of the prompt that is cropped.
TEST(Speculation, AGuessThatCannotBeDecodedIsLeftOut) {
  const auto model = test::random_model(small_config(40), DType::f32,
                                        {.tokenizer = byte_tokenizer(), .last_token_overflows = true});
  std::vector<uint32_t> prompt{'a', 'b', kVocabulary - 1};
  for (uint32_t i = 0; i < 60; ++i) prompt.push_back(128 + i);
  Generator plain(model, nullptr, nullptr), guessing(model, nullptr, nullptr);
  GenerationOptions options{.max_new_tokens = 20, .rollover = Rollover::keep, .rollover_keep = 10};
  Output expected, out;
  plain.start_tokens(prompt, options);
  options.speculation = 5;
  guessing.start_tokens(prompt, options);
  for (const uint32_t token : {'a', 'b', 'z'}) {
    plain.logits()[token] = guessing.logits()[token] = 1000;
    take(plain, expected);
    take(guessing, out);
  }
  EXPECT_EQ(run(guessing, out), run(plain, expected));
}

TEST(Speculation, ThreadsCancelAtAnyPoint) {
  const auto model = small_model(512);
  CancelFlag cancel;
  Generator plain(model, nullptr, nullptr), guessing(model, nullptr, nullptr);
  GenerationOptions options = copying(0, 300);
  const Output expected = generate(plain, kCopied, options);
  options.cancel = &cancel;
  options.speculation = 16;
  guessing.start(kCopied, options);
  cancel.set();
  std::atomic<bool> done{false};
  std::thread other([&] {  // ever longer pauses, so that on any machine calls get through in the end
    for (std::chrono::microseconds pause(20); !done; pause += pause / 20) {
      std::this_thread::sleep_for(pause);
      cancel.set();
    }
  });
  Output out;
  uint64_t cancelled = 0;
  while (out.finish == Finish::none) {
    const Failure failure = failure_of([&] { take(guessing, out); });
    if (failure.status == Status::ok) continue;
    EXPECT_EQ(failure.status, Status::cancelled);
    cancelled++;
    cancel.reset();
  }
  done = true;
  other.join();
  EXPECT_EQ(out, expected);
  EXPECT_GT(cancelled, 0u);
}

TEST(Speculation, ForksGoOnFromAnyPoint) {
  const auto model = small_model(256);
  const auto pool = make_kv_cache_factory(*model, {.page_size = 5, .page_count = 200});
  Generator plain(model, nullptr, nullptr), guessing(model, nullptr, pool);
  const Output whole = generate(plain, kCopied, copying());
  plain.start(kCopied, copying());
  const GenerationOptions options = copying(8);
  guessing.start(kCopied, options);
  Output so_far;
  while (so_far.finish == Finish::none) {
    const auto same = guessing.fork(0), other = guessing.fork(3), expected = plain.fork(3);
    EXPECT_EQ(run(*same, so_far), whole);
    EXPECT_EQ(run(*other, so_far), run(*expected, so_far));
    plain.next();
    take(guessing, so_far);
  }
  EXPECT_EQ(so_far, whole);
  EXPECT_EQ(pool->pool().audit(), guessing.cache().pages().size());
}

// A guess is no part of what a generator keeps.
TEST(Speculation, StoppingLeavesNoGuessInTheCache) {
  const auto model = small_model(256);
  const auto pool = make_kv_cache_factory(*model, {.page_size = 4});
  Generator guessing(model, nullptr, pool), plain(model, nullptr, nullptr);
  const GenerationOptions options = copying(32);
  uint64_t ahead = 0;
  for (size_t count = 1; count < 60; ++count) {
    guessing.start(kCopied, options);
    Output out;
    for (size_t i = 0; i < count; ++i) take(guessing, out);
    std::vector<uint32_t> known = tokens_of(kCopied);
    known.insert(known.end(), out.tokens.begin(), out.tokens.end());
    ahead += guessing.cache().length() > known.size();
    guessing.drop_running();
    EXPECT_LE(guessing.cache().length(), known.size());
    EXPECT_GE(guessing.cache().length(), known.size() - 1);
    EXPECT_EQ(guessing.cache().pages().size(), (guessing.cache().length() + 3) / 4);
    known.push_back('!');
    GenerationOptions next = copying();
    plain.start_tokens(known, next);
    next.speculation = 32;
    guessing.start_tokens(known, next);
    EXPECT_GE(guessing.stats().reused_tokens, known.size() - 2);
    EXPECT_EQ(guessing.stats().drafted_tokens, 0u);
    EXPECT_EQ(run(guessing), run(plain));
  }
  EXPECT_GT(ahead, 5u) << "it was stopped within guesses";
}

TEST(Speculation, MemoryFailuresLoseNothing) {
  const auto model = small_model(128);
  Generator plain(model, nullptr, nullptr);
  const Output expected = generate(plain, kCopied, copying());
  const GenerationOptions options = copying(16);
  {
    Generator guessing(model, nullptr, nullptr);
    EXPECT_GE(test::fail_every_allocation(
                  &test::fail_new_after, [&] { guessing.start(kCopied, options); },
                  [&] { EXPECT_EQ(model->session_count(), 0u); }),
              5);
    EXPECT_EQ(run(guessing), expected);
  }
  for (const test::AllocationHook fail_after : test::kAllocationHooks) {
    Generator guessing(model, nullptr, make_kv_cache_factory(*model, {.page_size = 2}));
    guessing.start(kCopied, options);
    std::vector<uint32_t> tokens;
    tokens.reserve(100);
    for (int64_t point = 0; tokens.size() < expected.tokens.size(); point = (point + 1) % 3) {
      fail_after(point);
      try {
        tokens.push_back(guessing.next().token);
      } catch (const std::bad_alloc&) {
      } catch (const Error& error) {
        fail_after(-1);
        EXPECT_EQ(error.status(), Status::out_of_memory);
      }
      fail_after(-1);
    }
    EXPECT_EQ(tokens, expected.tokens);
  }
}

TEST(Speculation, SteadyStateAllocatesNothing) {
  const auto model = small_model(512);
  const auto pool = make_kv_cache_factory(*model, {.page_count = 64});
  const GenerationOptions options = copying(16, 300);
  const auto both = [&](auto&& rest) {
    Generator first(model, nullptr, pool);
    first.start(kCopied, options);
    const auto fork = first.fork(1);
    for (Generator* generator : {fork.get(), &first}) {
      for (int i = 0; i < 9; ++i) generator->next();
      rest(*generator);
    }
  };
  both([](Generator& generator) { run(generator); });  // leases every page once
  both([](Generator& generator) {
    const uint64_t news = test::new_calls(), buffers = buffer_allocations();
    while (generator.next().finish == Finish::none) continue;
    EXPECT_EQ(test::new_calls(), news);
    EXPECT_EQ(buffer_allocations(), buffers);
    EXPECT_GT(generator.stats().accepted_tokens, 30u);
  });
}

TEST(Speculation, IsChecked) {
  Generator generator(small_model(), nullptr, nullptr);
  EXPECT_EQ(failure_of([&] { generator.start("abc", {.speculation = 65}); }).message,
            "a speculation of 65 tokens is more than 64");
  generator.start("abc", {.speculation = 64});
}

}  // namespace
}  // namespace riftco
