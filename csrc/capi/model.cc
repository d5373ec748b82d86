#include "riftco/model.h"

#include "backend/registry.h"
#include "capi/arguments.h"
#include "capi/handles.h"
#include "model/load.h"
#include "model/lora.h"
#include "model/save.h"

using namespace riftco;
using namespace riftco::capi;

static_assert(RT_POSITION_ROTARY == int32_t(PositionKind::rotary) && RT_NORM_RMS == int32_t(NormKind::rms));
static_assert(RT_ACTIVATION_GELU_TANH == int32_t(Activation::gelu_tanh));
static_assert(RT_ROTARY_SCALING_FACTORS == int32_t(RotaryScaling::factors));
static_assert(RT_ACTIVATION_SILU_GATED == int32_t(Activation::silu_gated));
static_assert(RT_COMPUTE_BF16 == int32_t(Compute::bf16));
static_assert(int(FileFormat::hugging_face) == RT_FORMAT_HUGGING_FACE - RT_FORMAT_RIFT);
static_assert(int(RT_BIAS_Q) == int(kBiasQ) && int(RT_BIAS_NORMS) == int(kBiasNorms));

namespace {

// RT_TYPE_*; absent: keep.
std::optional<DType> type_argument(int32_t type) {
  static constexpr std::optional<DType> kTypes[] = {std::nullopt, DType::f32,  DType::f16,
                                                    DType::bf16,  DType::q8_0, DType::q4_0};
  return kTypes[choice_argument<int32_t>(type, RT_TYPE_Q4_0, "options.type")];
}

LoadOptions load_options(const rt_model_load_options* given) {
  const rt_model_load_options options = read_struct(given, rt_model_load_options{}, "options");
  return {.backend = options.backend,
          .threads = options.threads,
          .memory_limit = options.memory_limit == 0 ? UINT64_MAX : options.memory_limit,
          .type = type_argument(options.type),
          .compute = choice_argument<Compute>(options.compute, RT_COMPUTE_BF16, "options.compute"),
          .progress = Progress("loading", cancel_flag(options.cancel, "options.cancel"), options.progress,
                               options.progress_user_data)};
}

SaveOptions save_options(const rt_model_save_options* given, std::string_view path) {
  const rt_model_save_options options = read_struct(given, rt_model_save_options{}, "options");
  const int32_t format = choice_argument<int32_t>(options.format, RT_FORMAT_HUGGING_FACE, "options.format");
  return {.format = format == RT_FORMAT_BY_PATH ? format_of_path(path) : FileFormat(format - RT_FORMAT_RIFT),
          .type = type_argument(options.type),
          .shard_bytes = options.shard_bytes == 0 ? SaveOptions{}.shard_bytes : options.shard_bytes,
          .stage = text_argument(options.stage, options.stage_size, "options.stage"),
          .parent = text_argument(options.parent, options.parent_size, "options.parent"),
          .progress = Progress("saving", cancel_flag(options.cancel, "options.cancel"), options.progress,
                               options.progress_user_data)};
}

void check_index(uint64_t index, uint64_t count, const char* what) {
  if (index >= count)
    fail(Status::out_of_range, "%s %" PRIu64 " is not below the %" PRIu64 " that there are", what, index,
         count);
}

std::shared_ptr<const File> buffer_argument(const void* data, uint64_t size) {
  return std::make_shared<const File>(array_argument(static_cast<const std::byte*>(data), size, "data"));
}

rt_model_config to_c(const ModelConfig& config) {
  return {.struct_size = sizeof(rt_model_config),
          .vocabulary_size = config.vocabulary_size,
          .maximum_context = config.maximum_context,
          .layer_count = config.layer_count,
          .width = config.width,
          .head_count = config.head_count,
          .kv_head_count = config.kv_head_count,
          .head_width = config.head_width,
          .mlp_width = config.mlp_width,
          .position = int32_t(config.position),
          .norm = int32_t(config.norm),
          .activation = int32_t(config.activation),
          .biases = config.biases,
          .tied_head = config.tied_head ? 1u : 0u,
          .rotary_width = config.rotary_width,
          .rotary_base = config.rotary_base,
          .norm_epsilon = config.norm_epsilon,
          .rotary_scaling = int32_t(config.rotary_scaling),
          .rotary_original_context = config.rotary_original_context,
          .rotary_factor = config.rotary_factor,
          .rotary_slow_rotations = config.rotary_slow_rotations,
          .rotary_fast_rotations = config.rotary_fast_rotations,
          .rotary_attention_factor = config.rotary_attention_factor,
          .sliding_window = config.sliding_window,
          .first_window_layer = config.first_window_layer,
          .qk_norm = config.qk_norm ? 1u : 0u,
          .reserved = 0};
}

ModelConfig from_c(const rt_model_config* given) {
  const rt_model_config config = read_struct(given, to_c(ModelConfig{}), "config");
  check_reserved(config.reserved, "config.reserved");
  return {.vocabulary_size = config.vocabulary_size,
          .maximum_context = config.maximum_context,
          .layer_count = config.layer_count,
          .width = config.width,
          .head_count = config.head_count,
          .kv_head_count = config.kv_head_count,
          .head_width = config.head_width,
          .mlp_width = config.mlp_width,
          .position = choice_argument<PositionKind>(config.position, RT_POSITION_ROTARY, "config.position"),
          .norm = choice_argument<NormKind>(config.norm, RT_NORM_RMS, "config.norm"),
          .activation =
              choice_argument<Activation>(config.activation, RT_ACTIVATION_SILU_GATED, "config.activation"),
          .biases = config.biases,
          .tied_head = flag_argument(config.tied_head, "config.tied_head"),
          .rotary_width = config.rotary_width,
          .rotary_base = config.rotary_base,
          .norm_epsilon = config.norm_epsilon,
          .rotary_scaling = choice_argument<RotaryScaling>(config.rotary_scaling, RT_ROTARY_SCALING_FACTORS,
                                                           "config.rotary_scaling"),
          .rotary_original_context = config.rotary_original_context,
          .rotary_factor = config.rotary_factor,
          .rotary_slow_rotations = config.rotary_slow_rotations,
          .rotary_fast_rotations = config.rotary_fast_rotations,
          .rotary_attention_factor = config.rotary_attention_factor,
          .sliding_window = config.sliding_window,
          .first_window_layer = config.first_window_layer,
          .qk_norm = flag_argument(config.qk_norm, "config.qk_norm")};
}

}  // namespace

rt_status rt_model_load_options_init(rt_model_load_options* options, uint64_t size) {
  return guarded(__func__, [&] { init_struct(options, size, rt_model_load_options{}, "options"); });
}

rt_status rt_model_load(const char* path, uint64_t path_size, const rt_model_load_options* options,
                        rt_model** model) {
  return guarded_create(__func__, "model", model, [&] {
    const std::string_view file = text_argument(path, path_size, "path");
    return std::make_unique<rt_model>(load_model(file, load_options(options)));
  });
}

rt_status rt_model_load_fd(int32_t descriptor, const rt_model_load_options* options, rt_model** model) {
  return guarded_create(__func__, "model", model, [&] {
    return std::make_unique<rt_model>(
        load_model(std::make_shared<const File>(descriptor), load_options(options)));
  });
}

rt_status rt_model_load_buffer(const void* data, uint64_t size, const rt_model_load_options* options,
                               rt_model** model) {
  return guarded_create(__func__, "model", model, [&] {
    return std::make_unique<rt_model>(load_model(buffer_argument(data, size), load_options(options)));
  });
}

rt_status rt_model_inspect(const char* path, uint64_t path_size, char* json, uint64_t capacity,
                           uint64_t* required) {
  return guarded(__func__, [&] {
    const std::string_view file = text_argument(path, path_size, "path");
    check_output(json, capacity, required, "json");
    write_output<char>(inspect_model(file), json, capacity, required, "json");
  });
}

rt_status rt_model_inspect_fd(int32_t descriptor, char* json, uint64_t capacity, uint64_t* required) {
  return guarded(__func__, [&] {
    check_output(json, capacity, required, "json");
    write_output<char>(inspect_model(std::make_shared<const File>(descriptor)), json, capacity, required,
                       "json");
  });
}

rt_status rt_model_inspect_buffer(const void* data, uint64_t size, char* json, uint64_t capacity,
                                  uint64_t* required) {
  return guarded(__func__, [&] {
    check_output(json, capacity, required, "json");
    write_output<char>(inspect_model(buffer_argument(data, size)), json, capacity, required, "json");
  });
}

rt_status rt_model_config_init(rt_model_config* config, uint64_t size) {
  return guarded(__func__, [&] { init_struct(config, size, to_c(ModelConfig{}), "config"); });
}

rt_status rt_model_create(const rt_model_config* config, const rt_tokenizer* tokenizer, uint64_t seed,
                          const rt_model_load_options* options, rt_model** model) {
  return guarded_create(__func__, "model", model, [&] {
    auto tokens = optional_object(tokenizer, "tokenizer");
    return std::make_unique<rt_model>(
        create_model(from_c(config), std::move(tokens), seed, load_options(options)));
  });
}

rt_status rt_model_save_options_init(rt_model_save_options* options, uint64_t size) {
  return guarded(__func__, [&] { init_struct(options, size, rt_model_save_options{}, "options"); });
}

rt_status rt_model_save(const rt_model* model, const char* path, uint64_t path_size,
                        const rt_model_save_options* options) {
  return guarded(__func__, [&] {
    const DecoderOnlyTransformer& object = *checked(model, "model").object;
    const std::string_view target = text_argument(path, path_size, "path");
    save_model(object, target, save_options(options, target));
  });
}

rt_status rt_model_get_config(const rt_model* model, rt_model_config* config) {
  return guarded(__func__, [&] {
    const DecoderOnlyTransformer& object = *checked(model, "model").object;
    OutputStruct(config, "config").write(to_c(object.config()));
  });
}

rt_status rt_model_get_info(const rt_model* model, rt_model_info* info) {
  return guarded(__func__, [&] {
    const DecoderOnlyTransformer& object = *checked(model, "model").object;
    const OutputStruct output(info, "info");
    const auto lock = object.reading();
    const uint64_t weight_bytes =
        object.weights().bytes() + (object.lora() ? object.lora()->parameters().bytes() : 0);
    output.write({.struct_size = 0,
                  .backend = int32_t(object.device().backend),
                  .threads = object.threads().threads(),
                  .parameter_count = parameter_count(object.config()),
                  .weight_bytes = weight_bytes,
                  .workspace_bytes = object.memory_bytes() - weight_bytes,
                  .session_count = object.session_count(),
                  .tensor_count = object.parameter_count(),
                  .metadata_count = object.metadata().size(),
                  .parameter_epoch = object.parameter_epoch(),
                  .compute = int32_t(object.weights().step_model().compute),
                  .reserved = 0});
  });
}

rt_status rt_model_metadata(const rt_model* model, const char* key, uint64_t key_size, char* text,
                            uint64_t capacity, uint64_t* required) {
  return guarded(__func__, [&] {
    const ModelMetadata& all = checked(model, "model").object->metadata();
    const std::string_view wanted = text_argument(key, key_size, "key");
    check_output(text, capacity, required, "text");
    const auto entry = all.find(wanted);
    if (entry == all.end())
      fail(Status::out_of_range, "the model's file has no key %s",
           quoted(wanted.data(), wanted.size()).c_str());
    write_output<char>(entry->second, text, capacity, required, "text");
  });
}

rt_status rt_model_metadata_key(const rt_model* model, uint64_t index, char* key, uint64_t capacity,
                                uint64_t* required) {
  return guarded(__func__, [&] {
    const ModelMetadata& all = checked(model, "model").object->metadata();
    check_output(key, capacity, required, "key");
    check_index(index, all.size(), "metadata key");
    write_output<char>(std::next(all.begin(), ptrdiff_t(index))->first, key, capacity, required, "key");
  });
}

rt_status rt_model_parameter(const rt_model* model, uint64_t index, rt_parameter_info* info) {
  return guarded(__func__, [&] {
    const DecoderOnlyTransformer& object = *checked(model, "model").object;
    const OutputStruct output(info, "info");
    const auto lock = object.reading();
    check_index(index, object.parameter_count(), "parameter");
    const ParameterInfo& p = object.parameter(index);
    output.write({.struct_size = 0,
                  .name = p.name.c_str(),
                  .type = dtype_info(p.type).name,
                  .rank = p.is_vector ? 1u : 2u,
                  .shape = {p.is_vector ? p.columns : p.rows, p.is_vector ? 1 : p.columns}});
  });
}

rt_status rt_model_read_parameter(const rt_model* model, const char* name, uint64_t name_size, float* values,
                                  uint64_t capacity, uint64_t* required) {
  return guarded(__func__, [&] {
    const DecoderOnlyTransformer& object = *checked(model, "model").object;
    const std::string_view wanted = text_argument(name, name_size, "name");
    check_output(values, capacity, required, "values");
    const auto lock = object.reading();
    const ParameterInfo& p = object.parameter(wanted);
    *required = uint64_t(p.rows) * p.columns;
    if (!values) return;
    check_capacity(capacity, *required, "values");
    object.read_parameter(wanted, values);
  });
}

rt_status rt_model_write_parameter(rt_model* model, const char* name, uint64_t name_size, const float* values,
                                   uint64_t count) {
  return guarded(__func__, [&] {
    ModelChange change(*checked(model, "model").object, "writing a parameter");
    const std::string_view wanted = text_argument(name, name_size, "name");
    change.write_parameter(wanted, array_argument(values, count, "values"));
  });
}

rt_status rt_model_to(rt_model* model, int32_t backend) {
  return guarded(__func__, [&] {
    DecoderOnlyTransformer& object = *checked(model, "model").object;
    const ModelChange change(object, "moving the model");
    const Device& device = find_device(backend);
    if (&device != &object.device())
      fail(Status::unsupported, "a model cannot be moved from %s to %s", object.device().name, device.name);
  });
}

rt_status rt_model_tokenizer(const rt_model* model, rt_tokenizer** tokenizer) {
  return guarded_create(__func__, "tokenizer", tokenizer, [&] {
    const DecoderOnlyTransformer& object = *checked(model, "model").object;
    if (!object.tokenizer()) fail(Status::invalid_state, "the model has no tokenizer");
    return std::make_unique<rt_tokenizer>(object.tokenizer());
  });
}

rt_status rt_model_logits(const rt_model* model, const uint32_t* tokens, uint64_t token_count,
                          const rt_cancel* cancel, float* logits, uint64_t capacity, uint64_t* required) {
  return guarded(__func__, [&] {
    const auto& object = checked(model, "model").object;
    const CancelFlag* flag = cancel_flag(cancel, "cancel");
    const std::span<const uint32_t> ids = array_argument(tokens, token_count, "tokens");
    check_output(logits, capacity, required, "logits");
    if (token_count > object->config().maximum_context)
      fail(Status::context_full, "%" PRIu64 " tokens are more than the maximum context of %u", token_count,
           object->config().maximum_context);
    *required = token_count * object->config().vocabulary_size;
    if (!logits) return;
    check_capacity(capacity, *required, "logits");
    sequence_logits(object, ids, flag, {logits, size_t(*required)});
  });
}

void rt_model_release(rt_model* model) { release(model); }
