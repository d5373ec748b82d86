#include "riftco/session.h"

#include <vector>

#include "backend/cpu/isa.h"
#include "capi/arguments.h"
#include "capi/handles.h"
#include "serve/session_file.h"

using namespace riftco;
using namespace riftco::capi;

static_assert(RT_KV_CACHE_CONTIGUOUS == int32_t(KvCacheKind::contiguous));
static_assert(RT_KV_CACHE_PAGED == int32_t(KvCacheKind::paged));
static_assert(RT_KV_ELEMENT_F32 == int32_t(DType::f32) && RT_KV_ELEMENT_F16 == int32_t(DType::f16) &&
              RT_KV_ELEMENT_BF16 == int32_t(DType::bf16));

// The first release of rt_decode_session_options has 24 bytes.
template <>
struct riftco::capi::StructEnds<rt_decode_session_options> {
  static constexpr uint64_t values[] = {24, offsetof(rt_decode_session_options, factory),
                                        offsetof(rt_decode_session_options, cancel),
                                        sizeof(rt_decode_session_options)};
};

namespace {

rt_kv_cache_factory_options factory_defaults() {
  return {.struct_size = sizeof(rt_kv_cache_factory_options),
          .kind = RT_KV_CACHE_PAGED,
          .element_type = RT_KV_ELEMENT_F32,
          .block_size = kDefaultPageSize,
          .block_count = 0,
          .maximum_context = 0,
          .memory_limit = 0};
}

rt_decode_session_options session_defaults() {
  return {.struct_size = sizeof(rt_decode_session_options),
          .kind = RT_KV_CACHE_PAGED,
          .element_type = RT_KV_ELEMENT_F32,
          .block_size = kDefaultPageSize,
          .maximum_context = 0,
          .factory = nullptr,
          .cancel = nullptr};
}

DType element_argument(int32_t type) {
  return choice_argument<DType>(type, RT_KV_ELEMENT_BF16, "options.element_type");
}

DecodeSessionOptions session_options(const rt_decode_session_options* options) {
  const rt_decode_session_options given = read_struct(options, session_defaults(), "options");
  return {.kind = choice_argument<KvCacheKind>(given.kind, RT_KV_CACHE_PAGED, "options.kind"),
          .page_size = given.block_size,
          .maximum_context = given.maximum_context,
          .element = element_argument(given.element_type),
          .factory = optional_object(given.factory, "options.factory"),
          .cancel = cancel_flag(given.cancel, "options.cancel")};
}

void check_tokens(const DecodeSession& session, std::span<const uint32_t> tokens) {
  for (uint32_t token : tokens) session.model().check_token(token);
}

// A step writes its rows or nothing: no size query.
void check_rows(uint64_t rows, uint32_t width, const float* out, uint64_t capacity, uint64_t* required,
                const char* name) {
  check_output(out, capacity, required, name);
  uint64_t size;
  if (__builtin_mul_overflow(rows, uint64_t(width), &size))
    fail(Status::overflow, "%s of %" PRIu64 " rows do not fit into memory", name, rows);
  *required = size;
  check_capacity(capacity, size, name);
}

void check_logits(uint64_t rows, const DecodeSession& session, const float* logits, uint64_t capacity,
                  uint64_t* required) {
  check_rows(rows, session.model().config().vocabulary_size, logits, capacity, required, "logits");
}

}  // namespace

rt_status rt_kv_cache_factory_options_init(rt_kv_cache_factory_options* options, uint64_t size) {
  return guarded(__func__, [&] { init_struct(options, size, factory_defaults(), "options"); });
}

rt_status rt_kv_cache_factory_create(const rt_model* model, const rt_kv_cache_factory_options* options,
                                     rt_kv_cache_factory** factory) {
  return guarded_create(__func__, "factory", factory, [&] {
    const DecoderOnlyTransformer& object = *checked(model, "model").object;
    const rt_kv_cache_factory_options given = read_struct(options, factory_defaults(), "options");
    const KvCacheKind kind = choice_argument<KvCacheKind>(given.kind, RT_KV_CACHE_PAGED, "options.kind");
    return std::make_unique<rt_kv_cache_factory>(make_kv_cache_factory(
        object, {.kind = kind,
                 .page_size = given.block_size,
                 .page_count = given.block_count,
                 .maximum_context = given.maximum_context,
                 .element = element_argument(given.element_type),
                 .memory_limit = given.memory_limit ? given.memory_limit : UINT64_MAX}));
  });
}

rt_status rt_kv_cache_factory_get_usage(const rt_kv_cache_factory* factory, rt_kv_cache_usage* usage) {
  return guarded(__func__, [&] {
    const KeyValueCacheFactory& object = *checked(factory, "factory").object;
    const OutputStruct output(usage, "usage");
    const KvPoolUsage now = object.usage();
    output.write({.struct_size = 0,
                  .block_size = now.page_size,
                  .block_count = now.page_count,
                  .free_count = now.free_count,
                  .allocated_bytes = now.allocated_bytes,
                  .block_bytes = object.pool().page_bytes()});
  });
}

void rt_kv_cache_factory_release(rt_kv_cache_factory* factory) { release(factory); }

rt_status rt_decode_session_options_init(rt_decode_session_options* options, uint64_t size) {
  return guarded(__func__, [&] { init_struct(options, size, session_defaults(), "options"); });
}

rt_status rt_model_decode_session_create(const rt_model* model, const rt_decode_session_options* options,
                                         rt_decode_session** session) {
  return guarded_create(__func__, "session", session, [&] {
    const auto& object = checked(model, "model").object;
    return std::make_unique<rt_decode_session>(
        std::make_unique<DecodeSession>(object, session_options(options)));
  });
}

rt_status rt_decode_session_step(rt_decode_session* session, uint32_t token, float* logits, uint64_t capacity,
                                 uint64_t* required) {
  return guarded(__func__, [&] {
    DecodeSession& object = *checked(session, "session").object;
    check_tokens(object, {&token, 1});
    check_logits(1, object, logits, capacity, required);
    object.step(token, {logits, size_t(*required)});
  });
}

rt_status rt_decode_session_prefill(rt_decode_session* session, const uint32_t* tokens, uint64_t token_count,
                                    float* logits, uint64_t capacity, uint64_t* required) {
  return guarded(__func__, [&] {
    DecodeSession& object = *checked(session, "session").object;
    const std::span<const uint32_t> ids = array_argument(tokens, token_count, "tokens");
    check_tokens(object, ids);
    check_logits(1, object, logits, capacity, required);
    object.prefill(ids, {logits, size_t(*required)});
  });
}

rt_status rt_decode_session_hidden_states(rt_decode_session* session, const uint32_t* tokens,
                                          uint64_t token_count, uint64_t first_row, float* states,
                                          uint64_t capacity, uint64_t* required) {
  return guarded(__func__, [&] {
    DecodeSession& object = *checked(session, "session").object;
    const std::span<const uint32_t> ids = array_argument(tokens, token_count, "tokens");
    check_tokens(object, ids);
    if (first_row >= token_count)
      fail(Status::out_of_range, "first_row %" PRIu64 " is not below token_count %" PRIu64, first_row,
           token_count);
    check_rows(token_count - first_row, object.model().config().width, states, capacity, required, "states");
    object.hidden_states(ids, first_row, {states, size_t(*required)});
  });
}

rt_status rt_decode_session_step_many(rt_decode_session* const* sessions, const uint32_t* tokens,
                                      uint64_t count, float* logits, uint64_t capacity, uint64_t* required) {
  return guarded(__func__, [&] {
    const std::span handles = array_argument(sessions, count, "sessions");
    if (handles.empty()) fail(Status::invalid_argument, "count is 0");
    std::vector<DecodeSession*>& objects = checked(handles[0], "sessions[0]").object->batch_scratch();
    objects.clear();
    for (rt_decode_session* handle : handles) {
      char name[40];
      std::snprintf(name, sizeof name, "sessions[%zu]", objects.size());
      objects.push_back(checked(handle, name).object.get());
    }
    const std::span<const uint32_t> ids = array_argument(tokens, count, "tokens");
    check_tokens(*objects[0], ids);
    check_logits(count, *objects[0], logits, capacity, required);
    DecodeSession::step_many(objects, ids, {logits, size_t(*required)});
  });
}

rt_status rt_decode_session_reset(rt_decode_session* session) {
  return guarded(__func__, [&] { checked(session, "session").object->reset(); });
}

rt_status rt_decode_session_truncate(rt_decode_session* session, uint64_t new_size) {
  return guarded(__func__, [&] { checked(session, "session").object->truncate(new_size); });
}

rt_status rt_decode_session_fork(const rt_decode_session* session, rt_decode_session** fork) {
  return guarded_create(__func__, "fork", fork, [&] {
    return std::make_unique<rt_decode_session>(checked(session, "session").object->fork());
  });
}

rt_status rt_decode_session_save(const rt_decode_session* session, const char* path, uint64_t path_size) {
  return guarded(__func__, [&] {
    const DecodeSession& object = *checked(session, "session").object;
    save_session(object, kKernelContract, text_argument(path, path_size, "path"));
  });
}

rt_status rt_model_decode_session_load(const rt_model* model, const char* path, uint64_t path_size,
                                       const rt_decode_session_options* options,
                                       rt_decode_session** session) {
  return guarded_create(__func__, "session", session, [&] {
    const auto& object = checked(model, "model").object;
    const std::string_view name = text_argument(path, path_size, "path");
    return std::make_unique<rt_decode_session>(
        load_session(object, session_options(options), kKernelContract, name));
  });
}

rt_status rt_decode_session_size(const rt_decode_session* session, uint64_t* size) {
  return guarded(__func__,
                 [&] { output_argument(size, "size") = checked(session, "session").object->size(); });
}

rt_status rt_decode_session_capacity(const rt_decode_session* session, uint64_t* capacity) {
  return guarded(__func__, [&] {
    output_argument(capacity, "capacity") = checked(session, "session").object->capacity();
  });
}

rt_status rt_decode_session_cache_kind(const rt_decode_session* session, int32_t* kind) {
  return guarded(__func__, [&] {
    output_argument(kind, "kind") = int32_t(checked(session, "session").object->cache_kind());
  });
}

rt_status rt_decode_session_block_size(const rt_decode_session* session, uint64_t* block_size) {
  return guarded(__func__, [&] {
    output_argument(block_size, "block_size") = checked(session, "session").object->block_size();
  });
}

rt_status rt_decode_session_get_usage(const rt_decode_session* session, rt_decode_session_usage* usage) {
  return guarded(__func__, [&] {
    const DecodeSession& object = *checked(session, "session").object;
    const OutputStruct output(usage, "usage");
    const KvCacheUsage now = object.cache().usage();
    output.write({.struct_size = 0,
                  .block_count = now.page_count,
                  .shared_count = now.shared_count,
                  .bytes = now.bytes});
  });
}

void rt_decode_session_release(rt_decode_session* session) { release(session); }
