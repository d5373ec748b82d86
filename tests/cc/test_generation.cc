#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "base/random.h"
#include "serve/generation.h"
#include "serve_support.h"
#include "text/byte_spelling.h"

namespace riftco {
namespace {

using test::Failure;
using test::failure_of;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint32_t kBos = 256, kEos = 257, kOtherEnd = 258, kMarker = 259,
                   kWord = 260;  // of special_tokenizer

// Bytes, special tokens "<bos>", "<eos>", "<end>" and "<marker>", and one token of several bytes.
std::shared_ptr<const Tokenizer> special_tokenizer(bool adds_bos) {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.tokens.push_back(spell_bytes(std::string(1, char(byte))));
  spec.flags.assign(256, kModelToken);
  for (const char* text : {"<bos>", "<eos>", "<end>", "<marker>"}) {
    spec.tokens.push_back(text);
    spec.flags.push_back(kAddedToken | kSpecialToken);
  }
  spec.tokens.push_back("STOPxyz");
  spec.flags.push_back(kModelToken);
  if (adds_bos) spec.prefix = {kBos};
  spec.special.bos = kBos;
  spec.special.eos = kEos;
  spec.special.end_of_generation = {kEos, kOtherEnd};
  return std::make_shared<const Tokenizer>("bpe", std::move(spec));
}

// A vocabulary larger than the tokenizer's: real files pad it.
std::shared_ptr<DecoderOnlyTransformer> small_model(
    uint32_t context = 64, std::shared_ptr<const Tokenizer> tokenizer = byte_tokenizer(),
    PositionKind position = PositionKind::learned) {
  ModelConfig config = test::tiny_config(context);
  config.vocabulary_size = 265;
  config.position = position;
  if (position == PositionKind::rotary) config.rotary_width = config.head_width;
  return test::random_model(config, DType::f32, {.tokenizer = std::move(tokenizer)});
}

struct Output {
  std::string text;
  std::vector<uint32_t> tokens;
  Finish finish = Finish::none;
  bool operator==(const Output&) const = default;
};

void take(Generator& generator, Output& out) {
  const GenerationPiece piece = generator.next();
  out.text += piece.bytes;
  out.tokens.push_back(piece.token);
  out.finish = piece.finish;
}

Output run(Generator& generator, Output out = {}) {
  while (out.finish == Finish::none) take(generator, out);
  return out;
}

Output generate(Generator& generator, std::string_view prompt, const GenerationOptions& options) {
  generator.start(prompt, options);
  return run(generator);
}

void force(Generator& generator, uint32_t token) {  // a logits hook that allows one token
  const auto row = generator.logits();
  std::fill(row.begin(), row.end(), -kInfinity);
  row[token] = 0;
}

// Makes the model say these tokens.
Output scripted(Generator& generator, std::span<const uint32_t> tokens) {
  Output out;
  for (uint32_t token : tokens) {
    force(generator, token);
    take(generator, out);
    if (out.finish != Finish::none) break;
  }
  return out;
}

Output scripted(Generator& generator, std::string_view text) {
  std::vector<uint32_t> tokens;
  for (char c : text) tokens.push_back(uint8_t(c));
  return scripted(generator, tokens);
}

std::vector<float> fresh_logits(const std::shared_ptr<DecoderOnlyTransformer>& model,
                                std::span<const uint32_t> tokens) {
  std::vector<float> logits(model->config().vocabulary_size);
  DecodeSession session(model, {.kind = KvCacheKind::contiguous});
  session.prefill(tokens, logits);
  return logits;
}

std::vector<float> copy(std::span<const float> row) { return {row.begin(), row.end()}; }

TEST(Generation, GreedyIsTheMostLikelyTokenOfEveryStep) {
  const auto model = small_model();
  Generator generator(model, nullptr, nullptr);
  const Output out = generate(generator, "Tensor:", {.max_new_tokens = 20});
  EXPECT_EQ(out.finish, Finish::length);
  ASSERT_EQ(out.tokens.size(), 20u);
  std::vector<uint32_t> tokens;
  for (char c : std::string("Tensor:")) tokens.push_back(uint8_t(c));
  for (uint32_t token : out.tokens) {
    const auto logits = fresh_logits(model, tokens);
    EXPECT_EQ(token, uint32_t(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    tokens.push_back(token);
  }
  EXPECT_EQ(generator.cache().length(), 7u + 19u) << "the last sampled token is never decoded";
  EXPECT_EQ(generator.stats().prompt_tokens, 7u);
  EXPECT_EQ(generator.stats().new_tokens, 20u);
  EXPECT_GT(generator.stats().prefill_seconds, 0);
  EXPECT_GT(generator.stats().decode_seconds, 0);
}

TEST(Generation, DefaultsAreGreedySeedZeroAnd256Tokens) {
  const GenerationOptions options;
  EXPECT_EQ(options.max_new_tokens, 256u);
  EXPECT_EQ(options.sampling.temperature, 0.0f);
  EXPECT_EQ(options.sampling.seed, 0u);
  Generator generator(small_model(512), nullptr, nullptr);
  EXPECT_EQ(generate(generator, "a", options).tokens.size(), 256u);
}

TEST(Generation, TheSameSeedGivesTheSameTokensWhateverElseRuns) {
  const auto model = small_model();
  const GenerationOptions options{.max_new_tokens = 30, .sampling = {.temperature = 1, .seed = 7}};
  Generator a(model, nullptr, nullptr), b(model, nullptr, nullptr);
  const Output expected = generate(a, "hello", options);
  generate(b, "something else", {.max_new_tokens = 9, .sampling = {.temperature = 2, .seed = 1}});
  b.start("hello", options);
  Output out;
  while (out.finish == Finish::none) {
    take(b, out);
    generate(a, "noise", {.max_new_tokens = 2, .sampling = {.temperature = 1, .seed = 3}});
  }
  EXPECT_EQ(out, expected);
  GenerationOptions other = options;
  other.sampling.seed = 8;
  EXPECT_NE(generate(a, "hello", other).tokens, expected.tokens);
}

TEST(Generation, ThreadsCancelFromOutside) {
  const auto model = small_model(512);
  CancelFlag cancel;
  Generator generator(model, nullptr, nullptr), undisturbed(model, nullptr, nullptr);
  const GenerationOptions options{.max_new_tokens = 100, .sampling = {.temperature = 1}};
  const std::string prompt(400, 'a');
  const Output expected = generate(undisturbed, prompt, options);
  GenerationOptions cancellable = options;
  cancellable.cancel = &cancel;
  std::atomic<bool> done{false};
  std::thread other([&] {
    // Ever longer pauses, so that on any machine calls are cancelled at first and get through in the end.
    for (std::chrono::microseconds pause(50); !done; pause += pause / 4) {
      cancel.set();
      std::this_thread::sleep_for(pause);
    }
  });
  for (bool cancelled = false; !cancelled;) {  // a prefill of many layers and row blocks
    cancel.reset();
    const Failure failure = failure_of([&] { generator.start(prompt, cancellable); });
    cancelled = failure.status == Status::cancelled;
    EXPECT_TRUE(cancelled || failure.status == Status::ok) << failure.message;
    EXPECT_EQ(model->session_count(), cancelled ? 0u : 1u);
  }
  const auto insist = [&](auto&& call) {
    for (Failure failure{Status::cancelled, ""}; failure.status != Status::ok;) {
      ASSERT_EQ(failure.status, Status::cancelled);
      cancel.reset();
      failure = failure_of(call);
    }
  };
  insist([&] { generator.start(prompt, cancellable); });
  Output out;
  while (out.finish == Finish::none) insist([&] { take(generator, out); });
  done = true;
  other.join();
  EXPECT_EQ(out, expected);
}

TEST(Generation, CancelAtStartLeavesNoGeneration) {
  const auto model = small_model();
  CancelFlag cancel;
  cancel.set();
  Generator generator(model, nullptr, nullptr);
  const GenerationOptions options{.max_new_tokens = 3, .cancel = &cancel};
  EXPECT_EQ(failure_of([&] { generator.start("abc", options); }).status, Status::cancelled);
  EXPECT_EQ(model->session_count(), 0u);
  EXPECT_EQ(failure_of([&] { generator.next(); }).status, Status::invalid_state);
  cancel.reset();
  generator.start("abc", options);
  cancel.set();
  EXPECT_EQ(failure_of([&] { generator.next(); }).status, Status::cancelled);
  EXPECT_EQ(failure_of([&] { generator.logits(); }).status, Status::cancelled);
  cancel.reset();
  Generator other(model, nullptr, nullptr);
  EXPECT_EQ(run(generator), generate(other, "abc", {.max_new_tokens = 3}));
}

TEST(Generation, CallsNeedARunningGeneration) {
  const auto model = small_model();
  Generator generator(model, nullptr, nullptr);
  EXPECT_EQ(failure_of([&] { generator.next(); }).message, "no generation is running");
  EXPECT_EQ(failure_of([&] { generator.logits(); }).status, Status::invalid_state);
  generator.start("abc", {.max_new_tokens = 1});
  EXPECT_EQ(model->session_count(), 1u);
  EXPECT_EQ(generator.next().finish, Finish::length);
  EXPECT_EQ(model->session_count(), 0u) << "between generations there is no session";
  EXPECT_EQ(failure_of([&] { generator.next(); }).status, Status::invalid_state);
  EXPECT_EQ(failure_of([&] { generator.logits(); }).status, Status::invalid_state);
  generator.start("abc", {});
  EXPECT_EQ(failure_of([&] { generator.start("", {}); }).status, Status::invalid_argument);
  EXPECT_EQ(failure_of([&] { generator.next(); }).status, Status::invalid_state)
      << "a failed start leaves none running";
  EXPECT_EQ(model->session_count(), 0u);
}

TEST(Generation, OptionsAreChecked) {
  Generator generator(small_model(64), nullptr, nullptr);
  const auto failure = [&](const GenerationOptions& options) {
    return failure_of([&] { generator.start("abc", options); });
  };
  EXPECT_EQ(failure({.max_new_tokens = 0}).message, "max_new_tokens is 0");
  EXPECT_EQ(failure({.sampling = {.temperature = -1}}).status, Status::invalid_argument);
  EXPECT_EQ(failure({.sampling = {.top_p = 0}}).status, Status::invalid_argument);
  EXPECT_EQ(failure({.rollover = Rollover(4)}).status, Status::invalid_argument);
  EXPECT_EQ(failure({.rollover = Rollover(-1)}).status, Status::invalid_argument);
  EXPECT_EQ(failure({.rollover = Rollover::keep}).status, Status::out_of_range);
  EXPECT_EQ(failure({.rollover = Rollover::keep, .rollover_keep = 64}).message,
            "rollover_keep 64 is not in 1 .. 63");
  EXPECT_EQ(failure({.rollover = Rollover::keep, .rollover_keep = 63}).status, Status::ok);
  EXPECT_EQ(failure({.rollover = Rollover::window, .rollover_keep = 1}).status, Status::invalid_argument);
  EXPECT_EQ(failure({.stop_strings = {"a", ""}}).message, "stop string 1 is empty");
  EXPECT_EQ(failure({.stop_tokens = {265}}).message, "stop token 265 is not below the vocabulary size 265");
  EXPECT_EQ(failure_of([&] {
              generator.start_tokens(std::array{1u, 265u}, {});
            }).status,
            Status::out_of_range);
  EXPECT_EQ(failure_of([&] { generator.start_tokens({}, {}); }).message, "the prompt has no token");
}

TEST(Generation, PromptsBeginWithBosWhereTheFileSaysSo) {
  const auto prompt_tokens = [](std::shared_ptr<const Tokenizer> tokenizer, std::string_view prompt,
                                bool parse_special = false) {
    const auto model = small_model(64, tokenizer);
    Generator generator(model, nullptr, nullptr);
    generator.start(prompt, {.parse_special = parse_special});
    return std::pair(generator.stats().prompt_tokens, copy(generator.logits()));
  };
  const auto expected = [](std::vector<uint32_t> tokens) {
    return std::pair(uint64_t(tokens.size()), fresh_logits(small_model(), tokens));
  };
  EXPECT_EQ(prompt_tokens(special_tokenizer(true), "ab"), expected({kBos, 'a', 'b'}));
  EXPECT_EQ(prompt_tokens(special_tokenizer(false), "ab"), expected({'a', 'b'}));
  EXPECT_EQ(prompt_tokens(special_tokenizer(true), ""), expected({kBos}));
  EXPECT_EQ(prompt_tokens(special_tokenizer(false), ""), expected({kBos})) << "something has to come first";
  EXPECT_EQ(prompt_tokens(special_tokenizer(false), "<marker>", true), expected({kMarker}));
  EXPECT_EQ(prompt_tokens(special_tokenizer(false), "<m", false), expected({'<', 'm'}));
  Generator bytes(small_model(), nullptr, nullptr);
  EXPECT_EQ(failure_of([&] { bytes.start("", {}); }).status, Status::invalid_argument)
      << "the byte tokenizer has no BOS";
}

TEST(Generation, ATokenizerOrNone) {
  const auto bare = small_model(64, nullptr);
  Generator tokens_only(bare, nullptr, nullptr);
  EXPECT_EQ(failure_of([&] { tokens_only.start("a", {}); }).status, Status::invalid_state);
  EXPECT_EQ(failure_of([&] { tokens_only.start_tokens(std::array{1u}, {.stop_strings = {"x"}}); }).status,
            Status::invalid_argument);
  tokens_only.start_tokens(std::array{97u}, {.max_new_tokens = 5});
  const Output out = run(tokens_only);
  EXPECT_EQ(out.text, "");
  Generator given(bare, byte_tokenizer(), nullptr);
  EXPECT_EQ(generate(given, "a", {.max_new_tokens = 5}).tokens, out.tokens);
}

TEST(Generation, EndTokensFinishAndHaveNoText) {
  Generator generator(small_model(64, special_tokenizer(false)), nullptr, nullptr);
  for (uint32_t end : {kEos, kOtherEnd}) {
    generator.start("p", {});
    EXPECT_EQ(scripted(generator, std::vector<uint32_t>{'h', 'i', end, 'x'}),
              (Output{"hi", {'h', 'i', end}, Finish::eos}));
  }
  generator.start("p", {.max_new_tokens = 4, .ignore_eos = true});
  EXPECT_EQ(scripted(generator, std::vector<uint32_t>{'h', kEos, kMarker, 'i', 'x'}),
            (Output{"hi", {'h', kEos, kMarker, 'i'}, Finish::length}));
  generator.start("p", {.stop_tokens = {'q', kMarker}});
  EXPECT_EQ(scripted(generator, std::vector<uint32_t>{'h', kMarker}),
            (Output{"h", {'h', kMarker}, Finish::stop}));
  generator.start("p", {.stop_tokens = {'z', 'q'}});
  EXPECT_EQ(scripted(generator, "hq"), (Output{"h", {'h', 'q'}, Finish::stop}));
  generator.start("p", {.max_new_tokens = 2});
  EXPECT_EQ(scripted(generator, std::vector<uint32_t>{'h', kEos}).finish, Finish::eos)
      << "also as the last token allowed";
}

TEST(Generation, TokensThatOnlyTheModelHasAreSilent) {
  Generator generator(small_model(), nullptr, nullptr);
  generator.start("p", {.max_new_tokens = 3});
  EXPECT_EQ(scripted(generator, std::vector<uint32_t>{'a', 264, 'b'}),
            (Output{"ab", {'a', 264, 'b'}, Finish::length}));
}

TEST(Generation, IncompleteCharactersAreHeldBackAndFlushed) {
  Generator generator(small_model(), nullptr, nullptr);
  const std::string text = "a\xC3\xA9\xF0\x9F\x98\x80z";
  generator.start("p", {.max_new_tokens = text.size()});
  std::vector<std::string> pieces;
  for (char c : text) {
    force(generator, uint8_t(c));
    pieces.emplace_back(generator.next().bytes);
  }
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "", "\xC3\xA9", "", "", "", "\xF0\x9F\x98\x80", "z"}));
  generator.start("p", {.max_new_tokens = 3});
  EXPECT_EQ(scripted(generator, "x\xF0\x9F").text, "x\xF0\x9F") << "what is left comes with the last piece";
}

TEST(Generation, StopStringsNeverLeak) {
  Generator generator(small_model(64, special_tokenizer(false)), nullptr, nullptr);
  const auto pieces = [&](std::vector<std::string> stops, std::vector<uint32_t> tokens, uint64_t limit = 20) {
    generator.start("p", {.max_new_tokens = limit, .stop_strings = std::move(stops)});
    std::string out;
    for (uint32_t token : tokens) {
      force(generator, token);
      const GenerationPiece piece = generator.next();
      out += piece.bytes;
      out += piece.finish == Finish::none   ? "|"
             : piece.finish == Finish::stop ? "."
             : piece.finish == Finish::eos  ? "!"
                                            : "$";
      if (piece.finish != Finish::none) break;
    }
    return out;
  };
  EXPECT_EQ(pieces({"END"}, {'a', 'E', 'N', 'D', 'b'}), "a|||.");
  EXPECT_EQ(pieces({"END"}, {'a', 'E', 'N', 'x', 'E', 'E', 'N', 'D'}), "a|||ENx||E||.");
  EXPECT_EQ(pieces({"END"}, {'a', 'E', 'N', kEos}), "a|||EN!") << "what was held back is flushed";
  EXPECT_EQ(pieces({"END"}, {'a', 'E', 'N'}, 3), "a||EN$");
  EXPECT_EQ(pieces({"OPxy"}, {'a', kWord, 'b'}), "a|ST.") << "inside one token";
  EXPECT_EQ(pieces({"aST"}, {'b', 'a', kWord}), "b||.") << "across tokens";
  EXPECT_EQ(pieces({"STOP", "xyz", "TO"}, {kWord}), "S.") << "the match that ends first";
  EXPECT_EQ(pieces({"TO", "aSTO"}, {'a', kWord}), "|.") << "of those that end together the longest";
  EXPECT_EQ(pieces({"\xC3\xA9"}, {'a', 0xC3, 0xA9}), "a||.");
  EXPECT_EQ(pieces({"aab"}, {'a', 'a', 'a', 'b'}), "||a|.");
}

// Text cut in any way gives what a search in the whole text gives.
TEST(StopStrings, DoNotDependOnHowTheTextIsCut) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    uint64_t counter = 0;
    const auto pick = [&](uint32_t below) { return philox(seed, counter++)[0] % below; };
    const auto word = [&](uint32_t size) {
      std::string s;
      for (uint32_t i = 0; i < size; ++i) s += char('a' + pick(2));
      return s;
    };
    std::vector<std::string> stops;
    for (uint32_t i = 0, n = 1 + pick(3); i < n; ++i) stops.push_back(word(1 + pick(6)));
    const std::string text = word(40);
    std::string expected = text;
    bool expected_stop = false;
    for (size_t end = 1; end <= text.size() && !expected_stop; ++end) {
      size_t longest = 0;
      for (const std::string& stop : stops)
        if (std::string_view(text).substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
      if (longest) expected = text.substr(0, end - longest), expected_stop = true;
    }
    StopStrings stream(stops);
    std::string out;
    bool stopped = false;
    for (size_t at = 0; at < text.size() && !stopped;) {
      const size_t n = std::min<size_t>(1 + pick(5), text.size() - at);
      stopped = stream.push(std::string_view(text).substr(at, n), out);
      at += n;
      ASSERT_TRUE(std::string_view(expected).starts_with(out)) << "leaked";
    }
    if (!stopped) stream.flush(out);
    ASSERT_EQ(out, expected);
    ASSERT_EQ(stopped, expected_stop);
  }
}

TEST(Generation, HooksSeeAndChangeTheRowThatIsSampled) {
  const auto model = small_model();
  Generator generator(model, nullptr, nullptr);
  generator.start("abc", {.max_new_tokens = 3});
  EXPECT_EQ(copy(generator.logits()), fresh_logits(model, std::array<uint32_t, 3>{'a', 'b', 'c'}));
  std::fill(generator.logits().begin(), generator.logits().end(), -kInfinity);
  EXPECT_EQ(failure_of([&] { generator.next(); }).status, Status::non_finite);
  generator.logits()[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(failure_of([&] { generator.next(); }).status, Status::non_finite);
  force(generator, 'd');
  const GenerationPiece piece = generator.next();
  EXPECT_EQ(piece.token, uint32_t('d'));
  EXPECT_EQ(piece.probability.log_probability, 0.0f);
  EXPECT_EQ(copy(generator.logits()), fresh_logits(model, std::array<uint32_t, 4>{'a', 'b', 'c', 'd'}));
  EXPECT_EQ(copy(generator.logits()), fresh_logits(model, std::array<uint32_t, 4>{'a', 'b', 'c', 'd'}))
      << "asked twice";
  EXPECT_EQ(generator.stats().new_tokens, 1u);
}

TEST(Generation, PagesOfTheLastGenerationAreUsedAgain) {
  const auto model = small_model();
  Generator generator(model, nullptr, nullptr);
  const GenerationOptions options{.max_new_tokens = 10, .sampling = {.temperature = 1}};
  const auto expect_as_fresh = [&](std::string_view prompt, uint64_t reused) {
    Generator fresh(model, nullptr, nullptr);
    EXPECT_EQ(generate(generator, prompt, options), generate(fresh, prompt, options)) << prompt;
    EXPECT_EQ(generator.stats().reused_tokens, reused) << prompt;
    EXPECT_EQ(generator.stats().prompt_tokens, prompt.size());
  };
  expect_as_fresh("hello world", 0);
  expect_as_fresh("hello world", 10);  // the last token gives the logits
  expect_as_fresh("hello there", 6);
  expect_as_fresh("hello", 4);
  expect_as_fresh("x", 0);
  Generator talk(model, nullptr, nullptr);
  const Output first = generate(talk, "hello", options);
  std::vector<uint32_t> history{'h', 'e', 'l', 'l', 'o'};
  history.insert(history.end(), first.tokens.begin(), first.tokens.end());
  history.push_back('!');
  talk.start_tokens(history, options);
  EXPECT_EQ(talk.stats().reused_tokens, 5 + 9u) << "a continued conversation";
  CancelFlag cancel;
  cancel.set();
  GenerationOptions cancelled = options;
  cancelled.cancel = &cancel;
  EXPECT_EQ(failure_of([&] {
              talk.start_tokens(std::array<uint32_t, 4>{'h', 'e', 'x', 'y'}, cancelled);
            }).status,
            Status::cancelled);
  talk.start("hex", options);
  EXPECT_EQ(talk.stats().reused_tokens, 2u) << "a failed start keeps what was common";
}

// --- rollover

TEST(Generation, WindowReplaysTheNewestTokens) {
  constexpr uint32_t kContext = 12;
  for (auto kind : {KvCacheKind::paged, KvCacheKind::contiguous}) {
    const auto model = small_model(kContext);
    Generator generator(model, nullptr, make_kv_cache_factory(*model, {.kind = kind}));
    generator.start("0123456789", {.max_new_tokens = 9});
    std::vector<uint32_t> history;
    for (char c : std::string("0123456789")) history.push_back(uint8_t(c));
    for (uint32_t i = 0; i < 9; ++i) {
      const auto newest = std::span(history).last(std::min<size_t>(history.size(), kContext));
      EXPECT_EQ(copy(generator.logits()), fresh_logits(model, newest)) << i;
      EXPECT_EQ(generator.stats().rollovers, history.size() > kContext ? history.size() - kContext : 0);
      history.push_back(generator.next().token);
    }
    EXPECT_EQ(generator.cache().length(), kContext);
  }
}

TEST(Generation, KeepReplaysOncePerContextLessK) {
  constexpr uint32_t kContext = 12, kKeep = 5;
  const auto model = small_model(kContext);
  Generator generator(model, nullptr, nullptr);
  generator.start("0123456789", {.max_new_tokens = 30, .rollover = Rollover::keep, .rollover_keep = kKeep});
  std::vector<uint32_t> history;
  for (char c : std::string("0123456789")) history.push_back(uint8_t(c));
  size_t start = 0;
  uint64_t rollovers = 0;
  for (uint32_t i = 0; i < 30; ++i) {
    if (history.size() - start > kContext) start = history.size() - kKeep, rollovers++;
    EXPECT_EQ(copy(generator.logits()), fresh_logits(model, std::span(history).subspan(start))) << i;
    EXPECT_EQ(generator.stats().rollovers, rollovers);
    history.push_back(generator.next().token);
  }
  EXPECT_EQ(rollovers, 4u);  // 13 tokens are 1 too many; then once per 12 - 5 + 1 new ones
}

TEST(Generation, StopFinishesWhenTheContextIsFull) {
  const auto model = small_model(12);
  Generator generator(model, nullptr, nullptr);
  const Output out = generate(generator, "0123456789", {.rollover = Rollover::stop});
  EXPECT_EQ(out.finish, Finish::length);
  EXPECT_EQ(out.tokens.size(), 3u) << "two fill the context and the third is never decoded";
  EXPECT_EQ(generator.cache().length(), 12u);
  EXPECT_EQ(generate(generator, "0123456789ab", {.rollover = Rollover::stop}).tokens.size(), 1u);
  const Failure failure = failure_of([&] { generator.start("0123456789abc", {.rollover = Rollover::stop}); });
  EXPECT_EQ(failure.status, Status::context_full);
  EXPECT_EQ(failure.message, "a prompt of 13 tokens does not fit the context of 12");
}

TEST(Generation, PositionsDecideTheDefaultPolicy) {
  Generator learned(small_model(12), nullptr, nullptr),
      rotary(small_model(12, byte_tokenizer(), PositionKind::rotary), nullptr, nullptr);
  EXPECT_EQ(generate(learned, "0123456789", {.max_new_tokens = 9}).tokens.size(), 9u);
  EXPECT_EQ(generate(rotary, "0123456789", {.max_new_tokens = 9}).tokens.size(), 3u);
  EXPECT_EQ(generate(rotary, "0123456789", {.max_new_tokens = 9, .rollover = Rollover::window}).tokens.size(),
            9u);
}

TEST(Generation, LongPromptsAreCropped) {
  const auto model = small_model(12);
  for (const GenerationOptions& options :
       {GenerationOptions{.rollover = Rollover::window},
        GenerationOptions{.rollover = Rollover::keep, .rollover_keep = 3}}) {
    Generator generator(model, nullptr, nullptr);
    generator.start("????0123456789ab", options);
    EXPECT_EQ(copy(generator.logits()), fresh_logits(model, byte_tokenizer()->encode("0123456789ab")));
    EXPECT_EQ(generator.stats().prompt_tokens, 16u);
    EXPECT_EQ(generator.stats().rollovers, 0u);
    generator.start("0123456789xyz!", options);
    EXPECT_EQ(copy(generator.logits()), fresh_logits(model, byte_tokenizer()->encode("23456789xyz!")));
    EXPECT_EQ(generator.stats().reused_tokens, 0u) << "the same tokens at other positions";
  }
}

TEST(Generation, ExhaustedPoolNeverRollsOver) {
  const auto model = small_model(32);
  const auto pool = make_kv_cache_factory(*model, {.page_size = 4, .page_count = 4});
  Generator generator(model, nullptr, pool);
  DecodeSession other(model, {.factory = pool});
  std::vector<float> logits(265);
  other.prefill(std::array<uint32_t, 5>{1, 2, 3, 4, 5}, logits);
  generator.start("abcdef", {.max_new_tokens = 20});
  Output out;
  take(generator, out);
  take(generator, out);
  take(generator, out);  // 8 tokens are decoded
  const Failure failure = failure_of([&] { generator.next(); });
  EXPECT_EQ(failure.status, Status::cache_exhausted);
  EXPECT_EQ(generator.stats().rollovers, 0u);
  EXPECT_EQ(generator.cache().length(), 8u);
  other.reset();
  Generator undisturbed(model, nullptr, nullptr);
  while (out.tokens.size() < 11) take(generator, out);
  const Output expected = generate(undisturbed, "abcdef", {.max_new_tokens = 20});
  EXPECT_EQ(out.tokens, std::vector<uint32_t>(expected.tokens.begin(), expected.tokens.begin() + 11));
}

TEST(Generation, ACancelledReplayIsMadeUpForByTheNextCall) {
  const auto model = small_model(12);
  const auto pool = make_kv_cache_factory(*model, {.page_size = 4, .page_count = 3});
  CancelFlag cancel;
  Generator generator(model, nullptr, pool), undisturbed(model, nullptr, nullptr);
  const Output expected = generate(undisturbed, "0123456789", {.max_new_tokens = 6});
  generator.start("0123456789", {.max_new_tokens = 6, .cancel = &cancel});
  Output out;
  for (int i = 0; i < 3; ++i) take(generator, out);
  cancel.set();
  EXPECT_EQ(failure_of([&] { generator.next(); }).status, Status::cancelled);
  cancel.reset();
  generator.logits();
  take(generator, out);
  EXPECT_EQ(generator.stats().rollovers, 1u);
  while (out.finish == Finish::none) take(generator, out);
  EXPECT_EQ(out, expected);
}

TEST(Generation, MemoryFailuresLoseNothing) {
  const auto model = small_model(12, special_tokenizer(true));
  const GenerationOptions options{.max_new_tokens = 20,
                                  .sampling = {.temperature = 1},
                                  .ignore_eos = true,
                                  .stop_strings = {"abcabcabcabcabcabcabcabcabcabcabc"}};
  Generator undisturbed(model, nullptr, nullptr);
  const Output expected = generate(undisturbed, "0123456789", options);
  Generator generator(model, nullptr, nullptr);
  const auto nothing_runs = [&] { EXPECT_EQ(model->session_count(), 0u); };
  EXPECT_GE(test::fail_every_allocation(
                &fail_buffer_after, [&] { generator.start("0123456789", options); }, nothing_runs),
            1);
  EXPECT_GE(test::fail_every_allocation(
                &test::fail_new_after, [&] { generator.start("0123456789", options); }, nothing_runs),
            5);
  Output out;
  out.text.reserve(1000);
  out.tokens.reserve(100);
  for (int64_t point = 0; out.finish == Finish::none; point = (point + 1) % 4) {
    test::fail_new_after(point);
    try {
      take(generator, out);
    } catch (const std::bad_alloc&) {
    }
    test::fail_new_after(-1);
  }
  EXPECT_EQ(out, expected);
  EXPECT_GE(test::fail_every_allocation(
                &test::fail_new_after, [&] { Generator(model, nullptr, nullptr); }, nothing_runs),
            5);
}

TEST(Generation, AFailedReplayEmptiesTheCache) {
  const auto model = small_model(12);
  // Token 264 of this model cannot be decoded, so that the replay fails.
  const auto bad = test::random_model(model->config(), DType::f32,
                                      {.tokenizer = byte_tokenizer(), .last_token_overflows = true});
  Generator generator(bad, nullptr, nullptr);
  generator.start("0123456789ab", {.max_new_tokens = 5});
  force(generator, 264);
  EXPECT_EQ(generator.next().token, 264u) << "a token that was given stays true";
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(failure_of([&] { generator.next(); }).status, Status::non_finite);
    EXPECT_EQ(generator.cache().length(), 0u);
    EXPECT_EQ(generator.stats().new_tokens, 1u);
    EXPECT_EQ(generator.stats().rollovers, 1u) << "counted once";
  }
  generator.start("0123", {.max_new_tokens = 1});
  EXPECT_EQ(copy(generator.logits()), fresh_logits(bad, byte_tokenizer()->encode("0123")));
}

TEST(Generation, SteadyStateAllocatesNothing) {
  const auto model = small_model(512);
  Generator generator(model, nullptr, nullptr);
  GenerationOptions options{.max_new_tokens = 200,
                            .sampling = {.temperature = 1, .top_k = 40, .top_p = 0.9f, .min_p = 0.01f},
                            .min_new_tokens = 100,
                            .stop_strings = {"never said by chance"},
                            .stop_tokens = {1}};
  options.sampling.alternatives = kMaxAlternatives;
  options.rules = {.bias = {{1, -20.0f}}, .repetition_penalty = 1.1f, .presence_penalty = 0.1f};
  generate(generator, "abc", options);
  generator.start("xyz", options);
  generator.next();
  const uint64_t buffers = buffer_allocations(), news = test::new_calls();
  while (generator.next().finish == Finish::none) continue;
  EXPECT_EQ(buffer_allocations(), buffers);
  EXPECT_EQ(test::new_calls(), news);
}

// A fork has all that the generation has: the text held back, tokens, logits; and goes on by itself.
TEST(Generation, ForksGoOnFromAnyPoint) {
  const auto model = small_model();
  Generator generator(model, nullptr, make_kv_cache_factory(*model, {.page_size = 5, .page_count = 60}));
  EXPECT_EQ(failure_of([&] { generator.fork(1); }).status, Status::invalid_state);
  const GenerationOptions options{
      .max_new_tokens = 40, .sampling = {.temperature = 1, .seed = 4}, .stop_strings = {"stop", "held"}};
  const Output whole = generate(generator, "abc", options);
  generator.start("abc", options);
  Output so_far;
  for (int i = 0; i < 9; ++i) take(generator, so_far);
  const auto same = generator.fork(0), other = generator.fork(1), again = generator.fork(1);
  EXPECT_EQ(run(*same, so_far), whole);
  const Output different = run(*other, so_far);
  EXPECT_NE(different, whole);
  EXPECT_EQ(run(generator, so_far), whole);
  generator.start("xyz", options);  // gives the shared pages back
  EXPECT_EQ(run(*again, so_far), different);

  generator.start("abc", options);
  scripted(generator, "sto");
  const auto held = generator.fork(0);
  EXPECT_EQ(scripted(*held, "p").finish, Finish::stop);
  EXPECT_EQ(scripted(generator, "x").text, "stox");
}

TEST(Generation, FactoriesAreInterchangeable) {
  const auto model = small_model(), other = test::random_model(test::tiny_config(), DType::f32);
  Generator expected(model, nullptr, nullptr);
  const GenerationOptions options{.max_new_tokens = 70, .sampling = {.temperature = 1}};
  const Output output = generate(expected, "abc", options);
  for (const KvCacheFactoryOptions& kind :
       {KvCacheFactoryOptions{.page_size = 3}, KvCacheFactoryOptions{.kind = KvCacheKind::contiguous}}) {
    const auto factory = make_kv_cache_factory(*model, kind);
    Generator a(model, nullptr, factory), b(model, nullptr, factory);
    EXPECT_EQ(generate(a, "abc", options), output);
  }
  const auto shorter = make_kv_cache_factory(*model, {.maximum_context = 20});
  Generator cropped(model, nullptr, shorter);
  EXPECT_EQ(generate(cropped, "abc", {.rollover = Rollover::stop}).tokens.size(), 18u);
  ModelConfig deep = test::tiny_config();
  deep.layer_count = 2;
  const auto foreign = test::random_model(deep, DType::f32);
  EXPECT_EQ(failure_of([&] { Generator(foreign, nullptr, shorter); }).status, Status::invalid_argument);
}

}  // namespace
}  // namespace riftco
