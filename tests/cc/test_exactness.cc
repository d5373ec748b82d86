// Promise 1: serving is bit for bit the plain path of one token at a time, whatever is changed around it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <map>
#include <thread>

#include "base/fp_env.h"
#include "base/random.h"
#include "model/rotary.h"
#include "serve/decode_session.h"
#include "serve/generation.h"
#include "serve_support.h"

namespace riftco {
namespace {

constexpr uint32_t kLength = 330;  // more than a block of rows and a segment of keys

struct Family {
  const char* name;
  ModelConfig config;
  DType type;
  DType cache = DType::f32;
  uint32_t adapters = 0;  // LoraTarget bits
  Compute compute = Compute::exact;
};

const Family kFamilies[] = {
    {"llama_f32", test::llama_config(), DType::f32},
    {"llama_f16", test::llama_config(), DType::f16},
    {"llama_bf16", test::llama_config(), DType::bf16},
    {"llama_q4_1", test::llama_config(), DType::q4_1},
    {"llama_q8_0", test::llama_config(), DType::q8_0},
    {"gpt2_f32", test::gpt2_config(), DType::f32},
    {"window_f32", test::window_config(), DType::f32},
    {"llama_f32_cache_f16", test::llama_config(), DType::f32, DType::f16},
    {"gpt2_f32_cache_bf16", test::gpt2_config(), DType::f32, DType::bf16},
    {"window_f32_cache_f16", test::window_config(), DType::f32, DType::f16},
    {"llama_q8_0_adapters", test::llama_config(), DType::q8_0, DType::f32, 255},
    {"gpt2_compute_bf16", test::gpt2_config(), DType::bf16, DType::f32, 0, Compute::bf16},
    {"llama_compute_bf16_adapters", test::llama_config(), DType::bf16, DType::f32, 255, Compute::bf16}};

// The plain path: a contiguous cache, one thread, one token at a time. Row i follows tokens[0 .. i].
struct Truth {
  std::vector<uint32_t> tokens;
  std::vector<std::vector<float>> rows;
};

class Exactness : public testing::TestWithParam<size_t> {
 protected:
  static const Family& family() { return kFamilies[GetParam()]; }

  // Models are kept: one for each instruction set and number of threads.
  static std::shared_ptr<DecoderOnlyTransformer> model(uint32_t threads = 1, CpuIsa isa = cpu_isa()) {
    static std::map<std::tuple<size_t, uint32_t, CpuIsa>, std::shared_ptr<DecoderOnlyTransformer>> models;
    auto& slot = models[{GetParam(), threads, isa}];
    if (!slot) slot = new_model({.threads = threads, .device = test::device_of(isa)});
    return slot;
  }

  static std::shared_ptr<DecoderOnlyTransformer> new_model(test::ModelOptions options) {
    options.compute = family().compute;
    auto made = test::random_model(family().config, family().type, options);
    if (family().adapters)
      test::attach_random_lora(*made, {.rank = 5, .targets = family().adapters, .alpha = 10, .seed = 3});
    return made;
  }

  static const Truth& truth() {
    static std::map<size_t, Truth> truths;
    Truth& t = truths[GetParam()];
    if (t.tokens.empty()) {
      t.tokens = test::random_tokens(kLength, family().config.vocabulary_size, 11);
      DecodeSession session(model(), cached({.kind = KvCacheKind::contiguous}));
      for (uint32_t token : t.tokens) t.rows.push_back(step(session, token));
    }
    return t;
  }

  // Options of a session or factory, with the family's cache.
  template <class Options = DecodeSessionOptions>
  static Options cached(Options options = {}) {
    options.element = family().cache;
    return options;
  }

  static std::vector<float> step(DecodeSession& session, uint32_t token) {
    std::vector<float> logits(family().config.vocabulary_size);
    session.step(token, logits);
    return logits;
  }

  // Feeds the session's next `count` tokens as one prefill.
  static void feed(DecodeSession& session, size_t count) {
    std::vector<float> logits(family().config.vocabulary_size);
    session.prefill(std::span(truth().tokens).subspan(session.size(), count), logits);
    check(session.size() - 1, logits);
  }

  static void feed_to(DecodeSession& session, size_t end, size_t chunk) {
    while (session.size() < end) feed(session, std::min(chunk, end - session.size()));
  }

  static void check(size_t row, std::span<const float> logits) {
    const std::vector<float>& expected = truth().rows[row];
    ASSERT_EQ(std::memcmp(logits.data(), expected.data(), expected.size() * sizeof(float)), 0)
        << "row " << row;
  }

  // One batch: each session gets its own next token.
  static void step_all(std::span<DecodeSession* const> sessions) {
    std::vector<uint32_t> tokens;
    for (DecodeSession* session : sessions) tokens.push_back(truth().tokens[session->size()]);
    const size_t vocabulary = family().config.vocabulary_size;
    std::vector<float> logits(sessions.size() * vocabulary);
    DecodeSession::step_many(sessions, tokens, logits);
    for (size_t i = 0; i < sessions.size(); ++i)
      check(sessions[i]->size() - 1, std::span(logits).subspan(i * vocabulary, vocabulary));
  }
};

// --- the models are worth testing

// The same model in double precision with plain loops; keeps the entropy of every attention row of the last
// token.
class PlainModel {
 public:
  explicit PlainModel(const DecoderOnlyTransformer& model)
      : config_(model.config()), frequencies_(rotary_frequencies(config_, {})) {
    for (size_t i = 0; i < model.parameter_count(); ++i) {
      const ParameterInfo& p = model.parameter(i);
      std::vector<float>& values = parameters_[p.name];
      values.resize(size_t(p.rows) * p.columns);
      model.read_parameter(p.name, values.data());
    }
    if (model.lora()) adapter_scale_ = model.lora()->options().alpha / model.lora()->options().rank;
  }

  std::vector<double> logits(std::span<const uint32_t> tokens) {
    const ModelConfig& c = config_;
    std::vector<std::vector<double>> x(tokens.size());
    for (size_t t = 0; t < tokens.size(); ++t) {
      x[t] = row("embedding.token", tokens[t]);
      if (c.position == PositionKind::learned) add(x[t], row("embedding.position", t));
    }
    for (uint32_t l = 0; l < c.layer_count; ++l) {
      const std::string at = "layers." + std::to_string(l) + ".";
      std::vector<std::vector<double>> q, k, v;
      for (size_t t = 0; t < x.size(); ++t) {
        const auto n = norm(x[t], at + "attention_norm");
        q.push_back(rotated(head_norm(linear(n, at + "q"), at + "q_norm"), t));
        k.push_back(rotated(head_norm(linear(n, at + "k"), at + "k_norm"), t));
        v.push_back(linear(n, at + "v"));
      }
      for (size_t t = 0; t < x.size(); ++t) {
        add(x[t], linear(attend(q[t], k, v, t, l, t + 1 == x.size()), at + "o"));
        const auto n = norm(x[t], at + "mlp_norm");
        auto up = linear(n, at + "up");
        const auto gate =
            c.activation == Activation::silu_gated ? linear(n, at + "gate") : std::vector<double>();
        for (size_t i = 0; i < up.size(); ++i)
          up[i] = gate.empty() ? up[i] * 0.5 * (1 + std::erf(up[i] / std::sqrt(2.0)))
                               : up[i] * gate[i] / (1 + std::exp(-gate[i]));
        add(x[t], linear(up, at + "down"));
      }
    }
    return linear(norm(x.back(), "final_norm"), "head");
  }

  std::vector<double> entropies;  // of the last token, by layer and head, as a share of the largest possible

 private:
  std::vector<double> row(const std::string& name, size_t r) const {
    const float* from = parameters_.at(name).data() + r * config_.width;
    return {from, from + config_.width};
  }
  static void add(std::vector<double>& x, const std::vector<double>& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  const std::vector<float>* find(const std::string& name) const {
    const auto it = parameters_.find(name);
    return it == parameters_.end() ? nullptr : &it->second;
  }
  std::vector<double> linear(const std::vector<double>& x, const std::string& name) const {
    const auto* weight = find(name + ".weight");
    const auto* bias = find(name + ".bias");
    std::vector<double> out = times(weight ? *weight : *find("embedding.token"), x);
    for (size_t o = 0; bias && o < out.size(); ++o) out[o] += (*bias)[o];
    if (const auto* a = find(name + ".lora_a")) {
      const std::vector<double> low = times(*find(name + ".lora_b"), times(*a, x));
      for (size_t o = 0; o < out.size(); ++o) out[o] += adapter_scale_ * low[o];
    }
    return out;
  }
  static std::vector<double> times(const std::vector<float>& matrix, const std::vector<double>& x) {
    std::vector<double> out(matrix.size() / x.size());
    for (size_t o = 0; o < out.size(); ++o)
      for (size_t i = 0; i < x.size(); ++i) out[o] += double(matrix[o * x.size() + i]) * x[i];
    return out;
  }
  std::vector<double> norm(const std::vector<double>& x, const std::string& name) const {
    double mean = 0, square = 0;
    if (config_.norm == NormKind::layer)
      for (double value : x) mean += value / double(x.size());
    for (double value : x) square += (value - mean) * (value - mean) / double(x.size());
    const auto* bias = find(name + ".bias");
    std::vector<double> out(x.size());
    for (size_t i = 0; i < x.size(); ++i)
      out[i] = (x[i] - mean) / std::sqrt(square + config_.norm_epsilon) * (*find(name + ".weight"))[i] +
               (bias ? (*bias)[i] : 0);
    return out;
  }
  std::vector<double> head_norm(std::vector<double> x, const std::string& name) const {
    const uint32_t d = config_.head_width;
    for (size_t head = 0; find(name + ".weight") && head < x.size(); head += d) {
      const std::vector<double> normed = norm({x.data() + head, x.data() + head + d}, name);
      std::copy(normed.begin(), normed.end(), x.begin() + ptrdiff_t(head));
    }
    return x;
  }
  std::vector<double> rotated(std::vector<double> x, size_t position) const {
    const uint32_t d = config_.head_width, pairs = config_.rotary_width / 2;
    const double size = config_.rotary_attention_factor;
    for (size_t head = 0; head < x.size(); head += d) {
      for (uint32_t i = 0; i < pairs; ++i) {
        const double angle = double(position) * frequencies_[i];
        const double a = size * x[head + i], b = size * x[head + i + pairs];
        x[head + i] = a * std::cos(angle) - b * std::sin(angle);
        x[head + i + pairs] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
    return x;
  }
  std::vector<double> attend(const std::vector<double>& q, const std::vector<std::vector<double>>& k,
                             const std::vector<std::vector<double>>& v, size_t position, uint32_t layer,
                             bool keep) {
    const uint32_t d = config_.head_width, group = config_.head_count / config_.kv_head_count;
    const uint32_t window = layer < config_.first_window_layer ? 0 : config_.sliding_window;
    const size_t begin = window && position >= window ? position + 1 - window : 0;
    std::vector<double> out(q.size());
    for (uint32_t head = 0; head < config_.head_count; ++head) {
      const size_t at = head * d, kv = head / group * d;
      std::vector<double> p(position + 1);
      double sum = 0, entropy = 0;
      for (size_t j = begin; j <= position; ++j) {
        for (uint32_t i = 0; i < d; ++i) p[j] += q[at + i] * k[j][kv + i] / std::sqrt(double(d));
        sum += p[j] = std::exp(p[j]);
      }
      for (size_t j = begin; j <= position; ++j) {
        p[j] /= sum;
        entropy -= p[j] * std::log(p[j]);
        for (uint32_t i = 0; i < d; ++i) out[at + i] += p[j] * v[j][kv + i];
      }
      if (keep) entropies.push_back(entropy / std::log(double(position + 1)));
    }
    return out;
  }

  const ModelConfig& config_;
  const std::vector<double> frequencies_;
  std::map<std::string, std::vector<float>> parameters_;
  double adapter_scale_ = 0;
};

TEST_P(Exactness, ModelsAreRightAndNotDegenerate) {
  constexpr size_t kTokens = 96;
  PlainModel plain(*model());
  const auto expected = plain.logits(std::span(truth().tokens).first(kTokens));
  const std::vector<float>& logits = truth().rows[kTokens - 1];
  double error = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += (logits[i] - expected[i]) * (logits[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  const bool rounds_to_bf16 = family().cache == DType::bf16 || family().compute == Compute::bf16;
  const double rounding = rounds_to_bf16 ? 2e-2 : family().cache == DType::f16 ? 2e-3 : 1e-5;
  EXPECT_LT(std::sqrt(error / size), is_quantised(family().type) ? 0.05 : rounding);
  double mean = 0;
  for (double entropy : plain.entropies) {
    mean += entropy / double(plain.entropies.size());
    EXPECT_GT(entropy, 0.2) << "a head looks at one key";
    EXPECT_LT(entropy, 0.99) << "a head looks at all keys alike";
  }
  EXPECT_GT(mean, 0.5);
  EXPECT_LT(mean, 0.97);
}

// --- each axis alone

TEST_P(Exactness, PageSizes) {
  for (uint32_t page : {1u, 3u, 16u, 64u, 1000u}) {
    SCOPED_TRACE(page);
    DecodeSession session(model(), cached({.page_size = page}));
    feed_to(session, 70, 1);
    feed(session, 180);
    feed_to(session, kLength, 1);
  }
}

TEST_P(Exactness, ChunksOnBothCaches) {
  for (KvCacheKind kind : {KvCacheKind::contiguous, KvCacheKind::paged}) {
    DecodeSession session(model(), cached({.kind = kind}));
    for (size_t chunk : {2u, 7u, 16u, 64u, kLength}) {
      SCOPED_TRACE(chunk);
      session.reset();
      feed_to(session, kLength, chunk);
    }
  }
}

TEST_P(Exactness, ChunksAroundABlockOfRows) {
  DecodeSession session(model(), cached());
  for (size_t first : {1u, 70u}) {
    for (size_t second : {kMaxBlockRows - 1, kMaxBlockRows, kMaxBlockRows + 1}) {
      session.reset();
      feed(session, first);
      feed(session, second);
      feed(session, 1);
    }
  }
}

TEST_P(Exactness, WholeSequences) {
  if (family().cache != DType::f32) return;  // they have a cache of their own, of f32
  const size_t vocabulary = family().config.vocabulary_size;
  std::vector<float> logits(kLength * vocabulary);
  sequence_logits(model(), truth().tokens, nullptr, logits);
  for (size_t i = 0; i < kLength; ++i) check(i, std::span(logits).subspan(i * vocabulary, vocabulary));
}

TEST_P(Exactness, BatchesInAnyOrder) {
  const auto pool = make_kv_cache_factory(*model(), cached<KvCacheFactoryOptions>({.page_count = 400}));
  DecodeSession source(model(), cached({.factory = pool}));
  feed(source, kLength);
  for (size_t count : {1u, 2u, 3u, 8u, 16u}) {
    std::vector<std::unique_ptr<DecodeSession>> sessions;
    std::vector<DecodeSession*> order;
    for (size_t i = 0; i < count; ++i) {
      sessions.push_back(source.fork());
      sessions.back()->truncate(philox(count, i)[0] % (kLength - 8));
      order.push_back(sessions.back().get());
    }
    for (uint64_t round = 0; round < 6; ++round) {
      for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[philox(round, i, 8)[0] % i]);
      step_all(order);
    }
  }
}

TEST_P(Exactness, ThreadsOneToThree) {
  for (uint32_t threads : {2u, 3u}) {
    DecodeSession session(model(threads), cached());
    feed(session, 300);  // few units of work with many segments, and the other way round
    feed_to(session, 306, 1);
    session.truncate(40);
    feed_to(session, 46, 1);
    feed(session, 9);
  }
}

TEST_P(Exactness, InstructionSets) {
  const size_t vocabulary = family().config.vocabulary_size;
  for (CpuIsa isa : test::available_isas()) {
    SCOPED_TRACE(test::device_of(isa).kernels->name);
    const size_t length = isa == CpuIsa::scalar ? 70 : kLength;  // scalar code is slow
    if (family().cache == DType::f32) {
      std::vector<float> logits(length * vocabulary);
      sequence_logits(model(1, isa), std::span(truth().tokens).first(length), nullptr, logits);
      for (size_t i = 0; i < length; ++i) check(i, std::span(logits).subspan(i * vocabulary, vocabulary));
    }
    DecodeSession session(model(1, isa), cached());
    feed(session, GetParam() == 0 ? 260 : 20);
    feed_to(session, session.size() + 3, 1);
  }
}

TEST_P(Exactness, ForksEqualAReplay) {
  DecodeSession session(model(), cached());
  feed(session, 250);
  auto fork = session.fork();
  auto again = fork->fork();
  feed_to(*fork, 270, 1);
  feed_to(session, 260, 3);
  again->truncate(100);
  feed_to(*again, 120, 7);
  feed_to(*fork, kLength, 60);
}

TEST_P(Exactness, SessionsTakeTurns) {
  const auto pool =
      make_kv_cache_factory(*model(), cached<KvCacheFactoryOptions>({.page_size = 3, .page_count = 250}));
  DecodeSession a(model(), cached({.factory = pool})), b(model(), cached({.factory = pool}));
  feed(b, 100);
  for (int i = 0; i < 60; ++i) {
    feed(a, 1);
    feed(b, 1);
  }
}

TEST_P(Exactness, ThreadsStepTwoSessionsAtOnce) {
  const auto shared = model(2);
  const auto pool = make_kv_cache_factory(*shared, cached<KvCacheFactoryOptions>({.page_count = 50}));
  truth();
  const auto work = [&](size_t chunk) {
    DecodeSession session(shared, cached({.factory = pool}));
    feed_to(session, kLength, chunk);
    session.reset();
    feed_to(session, 12, 1);
  };
  std::thread other(work, 20);
  work(50);
  other.join();
}

// --- the host's floating-point state

// What a host may have set: rounding up, and flushing subnormals where the processor can.
class HostileFpEnv {
 public:
  HostileFpEnv() {
    std::fegetenv(&saved_);
    std::fesetround(FE_UPWARD);
#ifdef __x86_64__
    _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
  }
  ~HostileFpEnv() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
};

TEST_P(Exactness, HostsMayRoundAndFlushAsTheyLikeThreads) {
  truth();
  const auto own = new_model({.threads = 3});  // its workers start below
  DecodeSession session(own, cached());
  const HostileFpEnv hostile;
  std::vector<float> logits(family().config.vocabulary_size);
  {
    const FpEnvGuard guard;  // as every public call does
    feed(session, 280);
    feed_to(session, 290, 1);
  }
  EXPECT_EQ(std::fegetround(), FE_UPWARD) << "the host gets its state back";
  DecodeSession unguarded(model(), cached());
  unguarded.prefill(std::span(truth().tokens).first(60), logits);
  EXPECT_NE(std::memcmp(logits.data(), truth().rows[59].data(), logits.size() * sizeof(float)), 0)
      << "this test shows nothing";
}

// --- rollover

TEST_P(Exactness, RolloverEqualsAFreshSessionFedTheKeptSuffix) {
  constexpr uint32_t kContext = 70;
  const auto factory =
      make_kv_cache_factory(*model(), cached<KvCacheFactoryOptions>({.maximum_context = kContext}));
  for (const GenerationOptions& options :
       {GenerationOptions{.max_new_tokens = 8, .rollover = Rollover::window},
        GenerationOptions{.max_new_tokens = 45, .rollover = Rollover::keep, .rollover_keep = 50}}) {
    Generator generator(model(), nullptr, factory);
    std::vector<uint32_t> history(truth().tokens.begin(), truth().tokens.begin() + 67);
    generator.start_tokens(history, options);
    size_t start = 0;
    for (GenerationPiece piece; piece.finish == Finish::none;) {
      const auto row = generator.logits();
      if (history.size() - start > kContext)
        start = history.size() - (options.rollover == Rollover::keep ? options.rollover_keep : kContext);
      DecodeSession fresh(model(), cached({.kind = KvCacheKind::contiguous}));
      std::vector<float> expected(row.size());
      fresh.prefill(std::span(history).subspan(start), expected);
      ASSERT_EQ(std::memcmp(row.data(), expected.data(), row.size() * sizeof(float)), 0) << history.size();
      piece = generator.next();
      history.push_back(piece.token);
    }
    EXPECT_GE(generator.stats().rollovers, 2u);
  }
}

// --- all axes together

TEST_P(Exactness, RandomCombinations) {
  const auto isas = test::available_isas();
  for (uint64_t combination = 0; combination < 12; ++combination) {  // of each family
    uint64_t counter = 0;
    const auto pick = [&](uint32_t below) {
      return philox(combination, counter++, 1 + GetParam())[0] % below;
    };
    const CpuIsa isa = isas[pick(uint32_t(isas.size()))];
    const auto shared = model(1 + pick(3), isa);
    const uint32_t longest = isa == CpuIsa::scalar ? 24 : kLength;  // scalar code is slow
    const uint32_t pages[] = {1, 3, 16, 64, 1000};
    KvCacheFactoryOptions options{.page_size = pages[pick(5)], .page_count = 2000};
    if (pick(4) == 0) options = {.kind = KvCacheKind::contiguous};
    const auto factory = make_kv_cache_factory(*shared, cached(options));
    SCOPED_TRACE(testing::Message() << "combination " << combination << ": " << shared->device().kernels->name
                                    << ", " << shared->threads().threads() << " threads, pages of "
                                    << factory->page_size());
    std::vector<std::unique_ptr<DecodeSession>> sessions;
    for (size_t i = 0, count = 1 + pick(4); i < count; ++i)
      sessions.push_back(std::make_unique<DecodeSession>(shared, DecodeSessionOptions{.factory = factory}));
    feed(*sessions[0], 1 + pick(longest - 20));
    for (int action = 0; action < 8; ++action) {
      const size_t i = pick(uint32_t(sessions.size()));
      DecodeSession& session = *sessions[i];
      const uint32_t left = longest - session.size();
      switch (pick(5)) {
        case 0:
          if (left) feed(session, 1 + pick(left));
          break;
        case 1: {
          const uint32_t chunks[] = {1, 2, 7, 16, 64};
          feed_to(session, session.size() + std::min(left, 10u), chunks[pick(5)]);
          break;
        }
        case 2:
          session.truncate(pick(session.size() + 1));
          break;
        case 3:
          if (sessions.size() < 6) sessions.push_back(session.fork());
          break;
        default: {
          std::vector<DecodeSession*> batch;
          for (size_t s = 0; s < sessions.size(); ++s)
            if (DecodeSession* next = sessions[(s + i) % sessions.size()].get(); next->size() < longest)
              batch.push_back(next);
          if (!batch.empty()) step_all(batch);
        }
      }
      factory->pool().poison_free_pages();
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Exactness, testing::Range(size_t(0), std::size(kFamilies)),
                         [](const auto& family) { return std::string(kFamilies[family.param].name); });

}  // namespace
}  // namespace riftco
