// What C programs cannot reach (see abi_tests/): the floating-point environment, fork(), threads, signals and
// failing allocations, seen through the C ABI.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/memory.h"
#include "riftco/riftco.h"
#include "serve_support.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

template <auto release>
struct Release {
  template <class H>
  void operator()(H* handle) const {
    release(handle);
  }
};
using Tokenizer = std::unique_ptr<rt_tokenizer, Release<rt_tokenizer_release>>;
using Model = std::unique_ptr<rt_model, Release<rt_model_release>>;
using Factory = std::unique_ptr<rt_kv_cache_factory, Release<rt_kv_cache_factory_release>>;
using Session = std::unique_ptr<rt_decode_session, Release<rt_decode_session_release>>;
using Generator = std::unique_ptr<rt_generator, Release<rt_generator_release>>;
using Cancel = std::unique_ptr<rt_cancel, Release<rt_cancel_release>>;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif

constexpr uint32_t kVocabulary = 256;
using Logits = std::vector<float>;

// out(pointer) is the last argument of a call that makes a handle.
template <class Owner>
class Out {
 public:
  explicit Out(Owner& owner) : owner_(owner) {}
  ~Out() { owner_.reset(handle_); }
  operator typename Owner::pointer *() { return &handle_; }

 private:
  Owner& owner_;
  typename Owner::pointer handle_ = nullptr;
};

Model make_model(uint32_t context = 64, uint32_t layers = 2, uint32_t width = 64) {
  rt_model_config config;
  rt_model_config_init(&config, sizeof config);
  config.maximum_context = context;
  config.layer_count = layers;
  config.width = width;
  config.head_width = width / 4;
  config.mlp_width = 4 * width;
  rt_model_load_options options;
  rt_model_load_options_init(&options, sizeof options);
  options.threads = 2;
  Tokenizer tokenizer;
  EXPECT_EQ(rt_tokenizer_create_byte(Out(tokenizer)), RT_OK);
  Model model;
  EXPECT_EQ(rt_model_create(&config, tokenizer.get(), 11, &options, Out(model)), RT_OK) << rt_last_error();
  return model;
}

Session make_session(const Model& model, rt_kv_cache_factory* factory = nullptr,
                     const rt_cancel* cancel = nullptr) {
  rt_decode_session_options options;
  rt_decode_session_options_init(&options, sizeof options);
  options.factory = factory;
  options.cancel = cancel;
  Session session;
  EXPECT_EQ(rt_model_decode_session_create(model.get(), &options, Out(session)), RT_OK) << rt_last_error();
  return session;
}

rt_status try_step(rt_decode_session* session, uint32_t token, Logits& logits) {
  logits.resize(kVocabulary);
  uint64_t required = 0;
  return rt_decode_session_step(session, token, logits.data(), logits.size(), &required);
}

Logits step(const Session& session, uint32_t token) {
  Logits logits;
  EXPECT_EQ(try_step(session.get(), token, logits), RT_OK) << rt_last_error();
  return logits;
}

rt_status try_prefill(rt_decode_session* session, const std::vector<uint32_t>& tokens, Logits& logits) {
  logits.resize(kVocabulary);
  uint64_t required = 0;
  return rt_decode_session_prefill(session, tokens.data(), tokens.size(), logits.data(), logits.size(),
                                   &required);
}

uint64_t size_of(const Session& session) {
  uint64_t size = 0;
  EXPECT_EQ(rt_decode_session_size(session.get(), &size), RT_OK);
  return size;
}

std::vector<uint32_t> some_tokens(size_t count) {
  std::vector<uint32_t> tokens(count);
  for (size_t i = 0; i < count; i++) tokens[i] = uint32_t(i * 37 % kVocabulary);
  return tokens;
}

// --- the floating-point environment ---

#if defined(__x86_64__)
uint32_t fp_state() { return _mm_getcsr(); }
void flush_to_zero() { _mm_setcsr(_mm_getcsr() | 0x8040); }
#elif defined(__aarch64__)
uint64_t fp_state() {
  uint64_t state;
  __asm__ volatile("mrs %0, fpcr" : "=r"(state));
  return state;
}
void flush_to_zero() { __asm__ volatile("msr fpcr, %0" : : "r"(fp_state() | 1 << 24)); }
#endif

TEST(Capi, ComputesInTheDefaultFloatingPointEnvironmentAndRestoresTheHosts) {
  const Model model = make_model();
  const Session plain = make_session(model), changed = make_session(model);
  const std::vector<uint32_t> tokens = some_tokens(20);
  Logits expected, got;
  ASSERT_EQ(try_prefill(plain.get(), tokens, expected), RT_OK);

  const std::fenv_t saved = [] {
    std::fenv_t state;
    std::fegetenv(&state);
    return state;
  }();
  std::fesetround(FE_UPWARD);
  flush_to_zero();
  const auto before = fp_state();
  const rt_status prefilled = try_prefill(changed.get(), tokens, got);
  const auto after_success = fp_state();
  const rt_status refused = try_step(changed.get(), kVocabulary, got);
  const auto after_failure = fp_state();
  const Model made = make_model();
  const auto after_create = fp_state();
  std::fesetenv(&saved);

  EXPECT_EQ(prefilled, RT_OK);
  EXPECT_EQ(refused, RT_OUT_OF_RANGE);
  EXPECT_EQ(before, after_success);
  EXPECT_EQ(before, after_failure);
  EXPECT_EQ(before, after_create);
  EXPECT_EQ(got, expected);
  Logits of_made;
  ASSERT_EQ(try_prefill(make_session(made).get(), tokens, of_made), RT_OK);
  EXPECT_EQ(of_made, expected);
}

// --- fork ---

// Runs `child` in a child of fork(), which tells by its exit status whether all is well.
void in_child(const std::function<bool()>& child) {
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    alarm(60);
    _exit(child() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Capi, AChildOfForkMayOnlyReleaseInheritedHandlesAndMakesNewOnes) {
  Model model = make_model();
  Session session = make_session(model);
  Generator generator;
  Factory factory;
  ASSERT_EQ(rt_kv_cache_factory_create(model.get(), nullptr, Out(factory)), RT_OK);
  ASSERT_EQ(rt_generator_create(model.get(), nullptr, factory.get(), Out(generator)), RT_OK);
  const Logits expected = step(session, 1);  // starts the workers
  in_child([&] {
    Logits logits;
    rt_decode_session* fork = nullptr;
    rt_tokenizer* tokenizer = nullptr;
    bool good = try_step(session.get(), 1, logits) == RT_INVALID_STATE;
    good &= std::string(rt_last_error()) ==
            "[rt_decode_session_step] session was made before fork(); in the child it may only be released";
    good &= rt_decode_session_fork(session.get(), &fork) == RT_INVALID_STATE && !fork;
    good &= rt_model_tokenizer(model.get(), &tokenizer) == RT_INVALID_STATE && !tokenizer;
    good &= rt_generator_start(generator.get(), "a", 1, nullptr) == RT_INVALID_STATE;
    session.reset();
    generator.reset();
    factory.reset();
    model.reset();
    // New handles work, threads and all.
    const Model own = make_model();
    return good && step(make_session(own), 1) == expected;
  });
  EXPECT_EQ(step(session, 2).size(), kVocabulary);  // the parent goes on
}

TEST(Capi, AForkWhileAnotherThreadIsInsideACallLeavesAWorkingChild) {
  if (kAddressSanitizer) GTEST_SKIP() << "its allocator's locks do not survive such a fork";
  const Model model = make_model();
  const Logits expected = step(make_session(model), 1);
  std::atomic<bool> done{false};
  std::thread busy([&] {
    while (!done) step(make_session(model), 1);
  });
  for (int i = 0; i < 5; i++) {
    in_child([&] {
      const Model own = make_model();
      return step(make_session(own), 1) == expected;
    });
  }
  done = true;
  busy.join();
}

// --- threads ---

TEST(CapiThreads, SessionsOfOneModelAreIndependent) {
  const Model model = make_model();
  Factory factory;
  rt_kv_cache_factory_options options;
  rt_kv_cache_factory_options_init(&options, sizeof options);
  options.block_count = 16;
  ASSERT_EQ(rt_kv_cache_factory_create(model.get(), &options, Out(factory)), RT_OK);
  auto decode = [&](uint32_t first) {
    const Session session = make_session(model, factory.get());
    std::vector<Logits> rows;
    for (uint32_t i = 0; i < 30; i++) rows.push_back(step(session, (first + 31 * i) % kVocabulary));
    return rows;
  };
  const std::vector<Logits> expected[] = {decode(3), decode(200)};
  std::vector<Logits> got[2];
  std::thread other([&] { got[0] = decode(3); });
  got[1] = decode(200);
  other.join();
  EXPECT_EQ(got[0], expected[0]);
  EXPECT_EQ(got[1], expected[1]);
}

TEST(CapiThreads, TheLastErrorIsTheThreads) {
  ASSERT_EQ(rt_decode_session_reset(nullptr), RT_INVALID_ARGUMENT);
  const std::string error = rt_last_error();
  std::thread([] {
    EXPECT_STREQ(rt_last_error(), "");
    EXPECT_EQ(rt_backend_check(RT_BACKEND_CUDA), RT_BACKEND_UNAVAILABLE);
  }).join();
  EXPECT_EQ(rt_last_error(), error);
}

TEST(CapiThreads, ConstHandlesAreReadConcurrently) {
  const Model model = make_model();
  const std::vector<uint32_t> tokens = some_tokens(5);
  auto logits = [&] {
    Logits all(5 * kVocabulary);
    uint64_t required = 0;
    EXPECT_EQ(rt_model_logits(model.get(), tokens.data(), 5, nullptr, all.data(), all.size(), &required),
              RT_OK);
    return all;
  };
  const Logits expected = logits();
  Logits got[2];
  std::thread other([&] { got[0] = logits(); });
  got[1] = logits();
  other.join();
  EXPECT_EQ(got[0], expected);
  EXPECT_EQ(got[1], expected);
}

// --- cancelling inside a call ---

constexpr uint32_t kLongContext = 8192;  // a prefill of this many takes far longer than what cancels it

// A cancelled prefill changed nothing: the session goes on like a new one.
void expect_cancelled(const Model& model, const Session& session, rt_status status, rt_cancel* cancel) {
  EXPECT_EQ(status, RT_CANCELLED) << rt_last_error();
  EXPECT_EQ(size_of(session), 0u);
  rt_cancel_reset(cancel);
  EXPECT_EQ(step(session, 9), step(make_session(model), 9));
}

TEST(CapiThreads, CancelFromAnotherThreadDuringPrefill) {
  const Model model = make_model(kLongContext, 4, 128);
  Cancel cancel;
  ASSERT_EQ(rt_cancel_create(Out(cancel)), RT_OK);
  const Session session = make_session(model, nullptr, cancel.get());
  std::thread setter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    rt_cancel_set(cancel.get());
  });
  Logits logits;
  const rt_status status = try_prefill(session.get(), some_tokens(kLongContext), logits);
  setter.join();
  expect_cancelled(model, session, status, cancel.get());
}

rt_cancel* cancel_of_handler = nullptr;

TEST(Capi, CancelFromASignalHandlerDuringPrefill) {
  const Model model = make_model(kLongContext, 4, 128);
  Cancel cancel;
  ASSERT_EQ(rt_cancel_create(Out(cancel)), RT_OK);
  const Session session = make_session(model, nullptr, cancel.get());
  cancel_of_handler = cancel.get();
  struct sigaction action {
  }, saved;
  action.sa_handler = [](int) { rt_cancel_set(cancel_of_handler); };
  sigaction(SIGALRM, &action, &saved);
  const itimerval timer = {.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = 10000}};
  setitimer(ITIMER_REAL, &timer, nullptr);
  Logits logits;
  const rt_status status = try_prefill(session.get(), some_tokens(kLongContext), logits);
  sigaction(SIGALRM, &saved, nullptr);
  expect_cancelled(model, session, status, cancel.get());
}

// A host that cancels its thread inside a call: the call completes, the thread ends after it.
TEST(Capi, PthreadCancelWaitsForTheEndOfTheCall) {
  if (kAddressSanitizer) GTEST_SKIP() << "it does not know the unwinding of cancelled threads";
  const Model model = make_model();
  const Session session = make_session(model);
  struct State {
    rt_decode_session* session;
    std::atomic<bool> inside{false};
    rt_status status = RT_INTERNAL;
  } state{session.get()};
  pthread_t thread;
  ASSERT_EQ(pthread_create(
                &thread, nullptr,
                [](void* context) -> void* {
                  State& s = *static_cast<State*>(context);
                  static float logits[kVocabulary];
                  uint64_t required = 0;
                  s.inside = true;
                  for (int i = 0; i < 60; i++)
                    s.status = rt_decode_session_step(s.session, 1, logits, kVocabulary, &required);
                  while (true) pthread_testcancel();
                  return nullptr;
                },
                &state),
            0);
  while (!state.inside) std::this_thread::yield();
  pthread_cancel(thread);
  void* result = nullptr;
  pthread_join(thread, &result);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_EQ(size_of(session), 60u);
  EXPECT_EQ(state.status, RT_OK);
}

// --- failing allocations ---

using riftco::test::AllocationHook;
using riftco::test::kAllocationHooks;

// Makes each allocation of call() fail in turn, small and large ones, until the call succeeds; unchanged()
// looks at what must be as before after each failure.
void with_failures(const std::function<rt_status()>& call, const std::function<void()>& unchanged,
                   std::span<const AllocationHook> hooks = kAllocationHooks) {
  for (const AllocationHook fail_after : hooks) {
    for (int64_t n = 0;; n++) {
      fail_after(n);
      const rt_status status = call();
      fail_after(-1);
      if (status == RT_OK) break;
      ASSERT_EQ(status, RT_OUT_OF_MEMORY) << rt_last_error() << " at allocation " << n;
      unchanged();
      if (testing::Test::HasFailure()) FAIL() << "at allocation " << n;
    }
  }
}

TEST(CapiMemory, MakingHandlesFailsCleanly) {
  rt_model_config config;
  rt_model_config_init(&config, sizeof config);
  config.layer_count = 1;
  config.width = config.mlp_width = 8;
  config.head_width = 2;
  const Model model = make_model();
  Model made, loaded;
  Tokenizer tokenizer;
  Factory factory;
  Session session;
  Generator generator;
  const std::string path = testing::TempDir() + "riftco_capi_memory.rift";
  with_failures([&] { return rt_tokenizer_create_byte(Out(tokenizer)); },
                [&] { EXPECT_EQ(tokenizer, nullptr); });
  with_failures([&] { return rt_model_create(&config, tokenizer.get(), 1, nullptr, Out(made)); },
                [&] { EXPECT_EQ(made, nullptr); });
  ASSERT_EQ(rt_model_save(made.get(), path.data(), path.size(), nullptr), RT_OK);
  // Large ones only: destructors of nlohmann::json allocate.
  constexpr AllocationHook kLarge[] = {&riftco::fail_buffer_after};
  with_failures([&] { return rt_model_load(path.data(), path.size(), nullptr, Out(loaded)); },
                [&] { EXPECT_EQ(loaded, nullptr); }, kLarge);
  std::filesystem::remove(path);
  with_failures([&] { return rt_kv_cache_factory_create(model.get(), nullptr, Out(factory)); },
                [&] { EXPECT_EQ(factory, nullptr); });
  with_failures([&] { return rt_model_decode_session_create(model.get(), nullptr, Out(session)); },
                [&] { EXPECT_EQ(session, nullptr); });
  with_failures([&] { return rt_generator_create(model.get(), nullptr, factory.get(), Out(generator)); },
                [&] { EXPECT_EQ(generator, nullptr); });
}

TEST(CapiMemory, StepsFailCleanly) {
  const Model model = make_model();
  const Session reference = make_session(model);
  const std::vector<uint32_t> tokens = some_tokens(20);
  Logits expected, logits(kVocabulary);
  ASSERT_EQ(try_prefill(reference.get(), tokens, expected), RT_OK);
  const Logits next = step(reference, 7);

  // Each time anew, so that pages are leased for the first time.
  Session session;
  with_failures(
      [&] {
        session = nullptr;
        const rt_status status = rt_model_decode_session_create(model.get(), nullptr, Out(session));
        return status == RT_OK ? try_prefill(session.get(), tokens, logits) : status;
      },
      [&] {
        if (!session) return;
        EXPECT_EQ(size_of(session), 0u);
        EXPECT_EQ(try_prefill(session.get(), tokens, logits), RT_OK);
        EXPECT_EQ(logits, expected);
      });
  EXPECT_EQ(logits, expected);

  // A step that replaces the shared tail page by a copy.
  Session fork;
  with_failures(
      [&] {
        fork = nullptr;
        const rt_status status = rt_decode_session_fork(session.get(), Out(fork));
        return status == RT_OK ? try_step(fork.get(), 7, logits) : status;
      },
      [&] {
        EXPECT_EQ(size_of(session), 20u);
        if (!fork) return;
        EXPECT_EQ(size_of(fork), 20u);
        EXPECT_EQ(step(fork, 7), next);
      });
  EXPECT_EQ(logits, next);
}

TEST(CapiMemory, BatchesInSteadyStateAllocateNothing) {
  const Model model = make_model();
  const Session a = make_session(model), b = make_session(model);
  rt_decode_session* const sessions[] = {a.get(), b.get()};
  const uint32_t tokens[] = {1, 2};
  std::vector<float> logits(2 * kVocabulary);
  uint64_t required = 0;
  const auto batch = [&] {
    return rt_decode_session_step_many(sessions, tokens, 2, logits.data(), logits.size(), &required);
  };
  ASSERT_EQ(batch(), RT_OK) << rt_last_error();
  const uint64_t before = riftco::test::new_calls();
  ASSERT_EQ(batch(), RT_OK);
  EXPECT_EQ(riftco::test::new_calls(), before);
}

TEST(CapiMemory, AGenerationLosesNothing) {
  const Model model = make_model();
  rt_generation_options options;
  rt_generation_options_init(&options, sizeof options);
  options.max_new_tokens = 60;  // beyond the context: rolls over
  options.temperature = 1;
  auto pull = [&](bool failing) {
    Generator generator;
    EXPECT_EQ(rt_generator_create(model.get(), nullptr, nullptr, Out(generator)), RT_OK);
    auto start = [&] { return rt_generator_start(generator.get(), "Once upon", 9, &options); };
    std::string text;
    rt_generation_piece piece{};
    piece.struct_size = sizeof piece;
    auto next = [&] { return rt_generator_next(generator.get(), &piece); };
    EXPECT_EQ(start(), RT_OK);
    do {
      if (failing) {  // the first allocation of each call, whatever it is, then again without
        riftco::test::fail_new_after(0);
        const rt_status status = next();
        riftco::test::fail_new_after(-1);
        EXPECT_TRUE(status == RT_OK || status == RT_OUT_OF_MEMORY) << rt_last_error();
        if (status != RT_OK) {
          EXPECT_EQ(next(), RT_OK) << rt_last_error();
        }
      } else {
        EXPECT_EQ(next(), RT_OK) << rt_last_error();
      }
      text.append(piece.bytes, piece.size);
    } while (piece.finish == RT_FINISH_NONE && !testing::Test::HasFailure());
    return text;
  };
  EXPECT_EQ(pull(true), pull(false));
}

}  // namespace
