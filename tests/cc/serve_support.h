// Random models, devices of every instruction set and small helpers for the tests of serve/.
#pragma once
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "base/error.h"
#include "base/memory.h"
#include "model/lora.h"
#include "model/transformer.h"

namespace riftco::test {

// One device per instruction set; only those that this machine has.
const Device& device_of(CpuIsa isa);
std::vector<CpuIsa> available_isas();
const Device& best_device();

// Not degenerate: attention is neither uniform nor on one key (test_exactness.cc checks that). 512 positions,
// 4 layers.
ModelConfig llama_config();   // rotary, grouped heads, rms, gated
ModelConfig gpt2_config();    // learned positions, layer norm, biases, untied head
ModelConfig window_config();  // llama's with norms of q and k, a window of keys behind the first layer, yarn

// The same small shape for tests of bookkeeping: 1 layer, `context` positions, a vocabulary of 64.
ModelConfig tiny_config(uint32_t context = 64);

struct ModelOptions {
  uint32_t threads = 1;
  const Device& device = best_device();
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;
  uint64_t seed = 1;
  float value_gain = 1;               // of the values that attention adds up
  bool last_token_overflows = false;  // float models: decoding the last token of the vocabulary is non_finite
  Compute compute = Compute::exact;
};

// Weights from a counter-based generator: the same for the same seed, whatever the device and the threads.
std::shared_ptr<DecoderOnlyTransformer> random_model(const ModelConfig& config, DType type,
                                                     const ModelOptions& options = {});

// Attaches adapters that change what the model computes: neither factor is zero.
void attach_random_lora(DecoderOnlyTransformer& model, const LoraOptions& options);

std::vector<uint32_t> random_tokens(size_t count, uint32_t vocabulary, uint64_t seed);

// The status that `call` fails with (ok: it does not fail), and its message.
struct Failure {
  Status status = Status::ok;
  std::string message;
};

template <class Call>
Failure failure_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.status(), error.what()};
  }
  return {};
}

// Calls of operator new by the process so far, and a countdown: the call after `countdown` more throws
// bad_alloc, once; negative switches that off.
uint64_t new_calls() noexcept;
void fail_new_after(int64_t countdown) noexcept;

using AllocationHook = void (*)(int64_t countdown) noexcept;
inline constexpr AllocationHook kAllocationHooks[] = {&fail_new_after, &fail_buffer_after};

// Calls `call` with the n-th allocation failing, n = 0, 1, ..., until it succeeds. After every failure
// `check` is called. Returns the number of failures.
template <class Call, class Check>
int fail_every_allocation(AllocationHook fail_after, Call&& call, Check&& check) {
  for (int failures = 0;; ++failures) {
    bool failed = true;
    fail_after(failures);
    try {
      call();
      failed = false;
    } catch (const std::bad_alloc&) {
    } catch (const Error& error) {
      if (error.status() != Status::out_of_memory) throw;
    }
    fail_after(-1);
    if (!failed) return failures;
    check();
  }
}

}  // namespace riftco::test
