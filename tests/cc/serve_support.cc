#include "serve_support.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/random.h"

namespace {
std::atomic<uint64_t> new_count{0};
std::atomic<int64_t> new_countdown{-1};
}  // namespace

// Not inlined: gcc would see malloc paired with delete.
__attribute__((noinline)) void* operator new(size_t size) {
  new_count.fetch_add(1, std::memory_order_relaxed);
  if (new_countdown.load(std::memory_order_relaxed) >= 0 &&
      new_countdown.fetch_sub(1, std::memory_order_relaxed) == 0)
    throw std::bad_alloc();
  if (void* memory = std::malloc(size ? size : 1)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace riftco::test {

uint64_t new_calls() noexcept { return new_count.load(std::memory_order_relaxed); }
void fail_new_after(int64_t countdown) noexcept { new_countdown.store(countdown, std::memory_order_relaxed); }

namespace {

float uniform(uint64_t seed, uint64_t stream, uint64_t i) {  // (-1, 1)
  return (float(philox(seed, i, stream)[0] >> 8) + 0.5f) * 0x1p-23f - 1.0f;
}

// One row of `columns` weights of about this deviation, in file layout.
std::vector<std::byte> random_row(DType type, uint32_t columns, float deviation, uint64_t seed,
                                  uint64_t stream, uint64_t at) {
  const float width = deviation * std::sqrt(3.0f);  // half of a uniform distribution's range
  std::vector<std::byte> row(row_bytes(type, columns));
  const auto put = [&](size_t offset, const auto& value) {
    std::memcpy(row.data() + offset, &value, sizeof value);
  };
  if (!is_quantised(type)) {
    for (uint32_t c = 0; c < columns; ++c) {
      const float value = width * uniform(seed, stream, at + c);
      if (type == DType::f32) put(4 * c, value);
      if (type == DType::f16) put(2 * c, float_to_half(value));
      if (type == DType::bf16) put(2 * c, float_to_bf16(value));
    }
    return row;
  }
  const DTypeInfo& info = dtype_info(type);
  for (uint32_t block = 0; block < columns / info.block; ++block) {
    const size_t base = size_t(block) * info.bytes;
    const float scale = width * (1.0f + 0.5f * uniform(seed, stream + 1000, at + block));
    if (type == DType::q8_0) {
      put(base, float_to_half(scale / 127));
    } else {
      put(base, float_to_half(scale * 2 / 15));
      put(base + 2, float_to_half(-scale));
    }
    for (size_t i = type == DType::q8_0 ? 2 : 4; i < info.bytes; ++i)
      row[base + i] = std::byte(philox(seed, at + block * 64 + i, stream)[1]);
  }
  return row;
}

float deviation_of(const ParameterInfo& p) {
  if (p.name.starts_with("embedding")) return 0.5f;
  const float gain = p.name.ends_with(".q.weight") || p.name.ends_with(".k.weight") ? 1.3f : 1.0f;
  return gain / std::sqrt(float(p.columns));
}

}  // namespace

const Device& device_of(CpuIsa isa) {
  const auto device = [](CpuIsa of) {
    return Device{Backend::cpu, "cpu", cpu_kernels(of), cpu_training_kernels(of)};
  };
  static const Device devices[] = {device(CpuIsa::scalar), device(CpuIsa::avx2), device(CpuIsa::avx512),
                                   device(CpuIsa::neon)};
  return devices[int(isa)];
}

std::vector<CpuIsa> available_isas() {
  std::vector<CpuIsa> isas;
  for (CpuIsa isa : {CpuIsa::scalar, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::neon})
    if (cpu_isa_supported(isa)) isas.push_back(isa);
  return isas;
}

const Device& best_device() { return device_of(cpu_isa()); }

ModelConfig llama_config() {
  ModelConfig c;
  c.vocabulary_size = 301;
  c.maximum_context = 512;
  c.layer_count = 4;
  c.width = 128;
  c.head_count = 4;
  c.kv_head_count = 2;
  c.head_width = 32;
  c.mlp_width = 256;
  c.position = PositionKind::rotary;
  c.norm = NormKind::rms;
  c.activation = Activation::silu_gated;
  c.biases = 0;
  c.tied_head = true;
  c.rotary_width = 32;
  return c;
}

ModelConfig gpt2_config() {
  ModelConfig c;
  c.vocabulary_size = 301;
  c.maximum_context = 512;
  return c;
}

ModelConfig window_config() {
  ModelConfig c = llama_config();
  c.biases = kBiasQ | kBiasK | kBiasV;
  c.qk_norm = true;
  c.sliding_window = 100;  // less than a segment of keys, more than a tile
  c.first_window_layer = 1;
  c.rotary_scaling = RotaryScaling::yarn;
  c.rotary_original_context = 128;
  c.rotary_factor = 4;
  c.rotary_slow_rotations = 1;
  c.rotary_fast_rotations = 32;
  c.rotary_attention_factor = 1.1;
  return c;
}

ModelConfig tiny_config(uint32_t context) {
  ModelConfig c;
  c.vocabulary_size = 64;
  c.maximum_context = context;
  c.layer_count = 1;
  c.width = 32;
  c.head_count = c.kv_head_count = 2;
  c.head_width = 16;
  c.mlp_width = 64;
  return c;
}

std::shared_ptr<DecoderOnlyTransformer> random_model(const ModelConfig& config, DType type,
                                                     const ModelOptions& options) {
  auto account = std::make_shared<MemoryAccount>();
  auto weights = std::make_unique<Weights>(options.device, config, parameter_list(config, type), account,
                                           options.compute);
  for (size_t i = 0; i < weights->parameters().size(); ++i) {
    const ParameterInfo& p = weights->parameters()[i];
    const float gain = p.name.ends_with(".v.weight") ? options.value_gain : 1.0f;
    for (uint32_t r = 0; r < p.rows; ++r) {
      std::vector<std::byte> row =
          random_row(p.type, p.columns, (p.is_vector ? 0.1f : deviation_of(p)) * gain, options.seed, i,
                     uint64_t(r) * p.columns);
      float* const values = reinterpret_cast<float*>(row.data());
      if (p.is_vector && p.name.ends_with("norm.weight"))
        for (uint32_t c = 0; c < p.columns; ++c) values[c] += 1.0f;
      if (options.last_token_overflows && p.name == "embedding.token" && r + 1 == p.rows)
        std::fill_n(values, p.columns, 3e38f);
      weights->set_rows(i, r, 1, row.data());
    }
  }
  return std::make_shared<DecoderOnlyTransformer>(std::move(weights), options.tokenizer, std::move(account),
                                                  std::make_shared<ThreadPool>(options.threads));
}

void attach_random_lora(DecoderOnlyTransformer& model, const LoraOptions& options) {
  ModelChange change(model, "test");
  attach_lora(change, options);
  ParameterStore& parameters = model.lora()->parameters();
  for (size_t i = 1; i < parameters.parameters().size(); i += 2) {  // every B
    const ParameterInfo& p = parameters.parameters()[i];
    for (uint32_t r = 0; r < p.rows; ++r)
      parameters.set_rows(
          i, r, 1, random_row(p.type, p.columns, 0.02f, options.seed, i, uint64_t(r) * p.columns).data());
  }
  change.commit();
}

std::vector<uint32_t> random_tokens(size_t count, uint32_t vocabulary, uint64_t seed) {
  std::vector<uint32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = philox(seed, i, 77)[0] % vocabulary;
  return tokens;
}

}  // namespace riftco::test
