// A model in memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "riftco/model.h"
#include "riftco/train.h"
#include "riftco_transformer/artifacts/tokenizer.hpp"
#include "riftco_transformer/core/backend.hpp"
#include "riftco_transformer/core/cancel.hpp"

namespace riftco_transformer::artifacts {

// Of matrices, when a model is loaded or saved.
enum class ElementType : std::int32_t {
  Keep = RT_TYPE_KEEP,
  F32 = RT_TYPE_F32,
  F16 = RT_TYPE_F16,
  Bf16 = RT_TYPE_BF16,
  Q8_0 = RT_TYPE_Q8_0,
  Q4_0 = RT_TYPE_Q4_0,
};

// How steps multiply with matrices of bf16: with the inputs as they are, or rounded to bf16 as well (riftco/model.h).
enum class Compute : std::int32_t { Exact = RT_COMPUTE_EXACT, Bf16 = RT_COMPUTE_BF16 };

// Any number of sessions and engines share one; it may be destroyed before them.
class Model {
 public:
  // From a .gguf file, a .rift file or a Hugging Face folder. threads 0: the CPUs that the process may use.
  explicit Model(std::string_view path, ExecutionBackend backend = ExecutionBackend::Cpu,
                 std::uint32_t threads = 0, ElementType type = ElementType::Keep,
                 Compute compute = Compute::Exact) {
    const rt_model_load_options options = load_options(backend, threads, type, compute);
    handle_ = detail::make<Handle>(rt_model_load, path.data(), path.size(), &options);
  }

  // From the bytes of a .gguf or .rift file, which are read here only.
  explicit Model(std::span<const std::byte> file, ExecutionBackend backend = ExecutionBackend::Cpu,
                 std::uint32_t threads = 0, ElementType type = ElementType::Keep,
                 Compute compute = Compute::Exact) {
    const rt_model_load_options options = load_options(backend, threads, type, compute);
    handle_ = detail::make<Handle>(rt_model_load_buffer, file.data(), file.size(), &options);
  }

  // Random parameters, the same for the same seed on every machine. The defaults of a config:
  // rt_model_config_init.
  Model(const rt_model_config& config, const Tokenizer& tokenizer, std::uint64_t seed,
        ExecutionBackend backend = ExecutionBackend::Cpu, std::uint32_t threads = 0,
        ElementType type = ElementType::Keep, Compute compute = Compute::Exact) {
    const rt_model_load_options options = load_options(backend, threads, type, compute);
    handle_ = detail::make<Handle>(rt_model_create, &config, tokenizer.get(), seed, &options);
  }

  rt_model_config config() const {
    rt_model_config config{};
    config.struct_size = sizeof config;
    detail::check(rt_model_get_config(get(), &config));
    return config;
  }

  rt_model_info info() const {
    rt_model_info info{};
    info.struct_size = sizeof info;
    detail::check(rt_model_get_info(get(), &info));
    return info;
  }

  // RT_INVALID_STATE where the file has none.
  Tokenizer tokenizer() const {
    rt_tokenizer* handle = nullptr;
    detail::check(rt_model_tokenizer(get(), &handle));
    return Tokenizer(handle);
  }

  // Logits of a whole sequence, [tokens.size(), vocabulary_size].
  std::vector<float> logits(std::span<const std::uint32_t> tokens, const CancelFlag* cancel = nullptr) const {
    rt_cancel* flag = cancel ? cancel->get() : nullptr;
    std::uint64_t count = 0;
    detail::check(rt_model_logits(get(), tokens.data(), tokens.size(), flag, nullptr, 0, &count));
    std::vector<float> logits(count);
    detail::check(rt_model_logits(get(), tokens.data(), tokens.size(), flag, logits.data(), count, &count));
    return logits;
  }

  // Writes a .gguf file, a .rift file or a Hugging Face folder, by the path: complete or not at all.
  void save(std::string_view path, ElementType type = ElementType::Keep) const {
    auto options = detail::defaults<rt_model_save_options>(rt_model_save_options_init);
    options.type = static_cast<std::int32_t>(type);
    detail::check(rt_model_save(get(), path.data(), path.size(), &options));
  }

  // The values of a parameter, rows one after another.
  std::vector<float> read_parameter(std::string_view name) const {
    std::uint64_t count = 0;
    detail::check(rt_model_read_parameter(get(), name.data(), name.size(), nullptr, 0, &count));
    std::vector<float> values(count);
    detail::check(rt_model_read_parameter(get(), name.data(), name.size(), values.data(), count, &count));
    return values;
  }

  // --- Changes; each is RT_INVALID_STATE while sessions of the model are alive (a running generation is one).

  void write_parameter(std::string_view name, std::span<const float> values) {
    detail::check(rt_model_write_parameter(get(), name.data(), name.size(), values.data(), values.size()));
  }

  // RT_BACKEND_UNAVAILABLE for one where it cannot be.
  void to(ExecutionBackend backend) { detail::check(rt_model_to(get(), static_cast<std::int32_t>(backend))); }

  static rt_lora_options lora_defaults() { return detail::defaults<rt_lora_options>(rt_lora_options_init); }
  // Low-rank adapters: riftco/train.h says what each call does.
  void attach_lora(const rt_lora_options& options = lora_defaults()) {
    detail::check(rt_model_attach_lora(get(), &options));
  }
  void detach_lora() { detail::check(rt_model_detach_lora(get())); }
  void merge_lora() { detail::check(rt_model_merge_lora(get())); }
  void load_lora(std::string_view path) {
    detail::check(rt_model_load_lora(get(), path.data(), path.size()));
  }
  void save_lora(std::string_view path) const {
    detail::check(rt_model_save_lora(get(), path.data(), path.size()));
  }
  // What is attached; RT_INVALID_STATE where nothing is.
  rt_lora_options lora() const {
    rt_lora_options options{};
    options.struct_size = sizeof options;
    detail::check(rt_model_get_lora(get(), &options));
    return options;
  }

  rt_model* get() const noexcept { return handle_.get(); }

 private:
  static rt_model_load_options load_options(ExecutionBackend backend, std::uint32_t threads, ElementType type,
                                            Compute compute) {
    auto options = detail::defaults<rt_model_load_options>(rt_model_load_options_init);
    options.backend = static_cast<std::int32_t>(backend);
    options.threads = threads;
    options.type = static_cast<std::int32_t>(type);
    options.compute = static_cast<std::int32_t>(compute);
    return options;
  }

  using Handle = detail::Owned<rt_model, rt_model_release>;
  Handle handle_;
};

}  // namespace riftco_transformer::artifacts
