/* Loading from a path, a descriptor and a buffer, with progress, cancelling and a memory limit; misuse. */
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <unistd.h>

#include "c/check.h"

static char path[512];
static unsigned char* data;
static uint64_t size;
static float expected[256];

static void logits_of(const rt_model* model, float* logits) {
  const uint32_t token = 65;
  uint64_t required = 0;
  OK(rt_model_logits(model, &token, 1, NULL, logits, 256, &required));
}

static void check_loaded(rt_model* model) {
  float logits[256] = {0};
  logits_of(model, logits);
  CHECK(memcmp(logits, expected, sizeof logits) == 0);
  rt_model_release(model);
}

static void test_descriptor(void) {
  rt_model* model = NULL;
  uint64_t required = 0;
  const int file = open(path, O_RDONLY), writable = open(path, O_WRONLY);
  int ends[2];
  CHECK(lseek(file, 7, SEEK_SET) == 7);
  OK(rt_model_load_fd(file, NULL, &model));
  check_loaded(model);
  CHECK(lseek(file, 0, SEEK_CUR) == 7); /* where it was */
  OK(rt_model_inspect_fd(file, NULL, 0, &required));
  CHECK(required > 100);
  REFUSED(rt_model_inspect_fd(file, NULL, 0, NULL), RT_INVALID_ARGUMENT, "required is NULL");
  REFUSED(rt_model_load_fd(file, NULL, NULL), RT_INVALID_ARGUMENT, "model is NULL");
  REFUSED(rt_model_load_fd(writable, NULL, &model), RT_INPUT_OUTPUT, "cannot read");
  close(file);
  close(writable);
  REFUSED(rt_model_load_fd(file, NULL, &model), RT_INPUT_OUTPUT, "file descriptor");
  REFUSED(rt_model_load_fd(-1, NULL, &model), RT_INPUT_OUTPUT, "file descriptor -1");
  CHECK(model == NULL);
  CHECK(pipe(ends) == 0);
  REFUSED(rt_model_load_fd(ends[0], NULL, &model), RT_INPUT_OUTPUT, "not a regular file");
  close(ends[0]);
  close(ends[1]);
}

static void test_buffer(void) {
  rt_model* model = NULL;
  uint64_t required = 0, at;
  unsigned char* copy = malloc(size);
  CHECK(copy != NULL);
  if (copy == NULL) return;
  memcpy(copy, data, size);
  OK(rt_model_load_buffer(copy, size, NULL, &model));
  memset(copy, 0, size); /* it is read during the call only */
  check_loaded(model);
  free(copy);
  OK(rt_model_inspect_buffer(data, size, NULL, 0, &required));
  CHECK(required > 100);
  REFUSED(rt_model_inspect_buffer(data, size, NULL, 1, &required), RT_INVALID_ARGUMENT, "json is NULL");
  REFUSED(rt_model_inspect_buffer(NULL, 1, NULL, 0, &required), RT_INVALID_ARGUMENT, "data is NULL");
  REFUSED(rt_model_load_buffer(NULL, 1, NULL, &model), RT_INVALID_ARGUMENT, "data is NULL");
  REFUSED(rt_model_load_buffer(data, UINT64_MAX, NULL, &model), RT_OVERFLOW, "data");
  REFUSED(rt_model_load_buffer(data, size, NULL, NULL), RT_INVALID_ARGUMENT, "model is NULL");
  REFUSED(rt_model_load_buffer(NULL, 0, NULL, &model), RT_CORRUPT_DATA, "the buffer");
  for (at = 1; at < size; at += 9973)
    REFUSED(rt_model_load_buffer(data, at, NULL, &model), RT_CORRUPT_DATA, "the buffer");
  CHECK(model == NULL);
}

typedef struct {
  uint64_t calls, done, total;
  uint64_t cancel_after; /* calls */
  rt_cancel* cancel;
} watch;

static void on_progress(void* user_data, uint64_t done, uint64_t total) {
  watch* w = user_data;
  CHECK(done >= w->done && done <= total && (w->calls == 0 || total == w->total));
  w->done = done;
  w->total = total;
  if (++w->calls == w->cancel_after) rt_cancel_set(w->cancel);
}

static void test_progress_and_cancel(void) {
  rt_model_load_options options;
  rt_model* model = NULL;
  watch w, all;
  memset(&w, 0, sizeof w);
  OK(rt_cancel_create(&w.cancel));
  OK(rt_model_load_options_init(&options, sizeof options));
  CHECK(options.cancel == NULL && options.progress == NULL && options.memory_limit == 0);
  options.progress = on_progress;
  options.progress_user_data = &w;
  options.cancel = w.cancel;
  OK(rt_model_load(path, strlen(path), &options, &model));
  check_loaded(model);
  CHECK(w.calls > 10 && w.total > size && w.done == w.total);
  all = w;
  for (w.cancel_after = 1; w.cancel_after <= all.calls; w.cancel_after++) { /* at every point */
    w.calls = w.done = 0;
    model = (rt_model*)&w;
    REFUSED(rt_model_load_buffer(data, size, &options, &model), RT_CANCELLED, "loading");
    CHECK(model == NULL && w.calls == w.cancel_after);
    rt_cancel_reset(w.cancel);
  }
  options.cancel = (const rt_cancel*)data;
  REFUSED(rt_model_load(path, strlen(path), &options, &model), RT_INVALID_ARGUMENT, "options.cancel");
  rt_cancel_release(w.cancel);
}

static void test_types(void) {
  static const char* const kept[] = {"f32", "f32", "f16", "bf16", "q8_0", "q4_0"};
  rt_model_load_options options;
  rt_parameter_info parameter;
  rt_model_config config;
  rt_model* model = NULL;
  int32_t type;
  OK(rt_model_load_options_init(&options, sizeof options));
  CHECK(options.type == RT_TYPE_KEEP);
  memset(&parameter, 0, sizeof parameter);
  parameter.struct_size = sizeof parameter;
  for (type = RT_TYPE_KEEP; type <= RT_TYPE_Q4_0; type++) {
    options.type = type;
    OK(rt_model_load(path, strlen(path), &options, &model));
    OK(rt_model_parameter(model, 0, &parameter));
    CHECK(strcmp(parameter.type, kept[type]) == 0);
    rt_model_release(model);
    OK(rt_model_load_buffer(data, size, &options, &model));
    OK(rt_model_parameter(model, 0, &parameter));
    CHECK(strcmp(parameter.type, kept[type]) == 0);
    rt_model_release(model);
  }
  OK(rt_model_config_init(&config, sizeof config));
  config.width = 8;
  config.head_width = 2;
  REFUSED(rt_model_create(&config, NULL, 1, &options, &model), RT_UNSUPPORTED, "whole blocks");
  for (type = -1; type <= RT_TYPE_Q4_0 + 1; type += RT_TYPE_Q4_0 + 2) {
    options.type = type;
    REFUSED(rt_model_load(path, strlen(path), &options, &model), RT_INVALID_ARGUMENT, "options.type");
    REFUSED(rt_model_load_buffer(data, size, &options, &model), RT_INVALID_ARGUMENT, "options.type");
  }
  CHECK(model == NULL);
}

static int32_t compute_of(const rt_model* model) {
  rt_model_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  OK(rt_model_get_info(model, &info));
  return info.compute;
}

static void test_compute(void) {
  rt_model_load_options options;
  rt_model_config config;
  rt_model* model = NULL;
  OK(rt_model_load_options_init(&options, sizeof options));
  CHECK(options.compute == RT_COMPUTE_EXACT);
  OK(rt_model_config_init(&config, sizeof config));
  options.compute = RT_COMPUTE_BF16; /* the file's matrices are float32, as those of a new model are */
  REFUSED(rt_model_load(path, strlen(path), &options, &model), RT_UNSUPPORTED, "type bf16");
  REFUSED(rt_model_load_buffer(data, size, &options, &model), RT_UNSUPPORTED, "type bf16");
  REFUSED(rt_model_create(&config, NULL, 1, &options, &model), RT_UNSUPPORTED, "type bf16");
  options.type = RT_TYPE_F16;
  REFUSED(rt_model_load(path, strlen(path), &options, &model), RT_UNSUPPORTED, "type bf16");
  options.type = RT_TYPE_BF16;
  for (options.compute = RT_COMPUTE_EXACT; options.compute <= RT_COMPUTE_BF16; options.compute++) {
    OK(rt_model_load(path, strlen(path), &options, &model));
    CHECK(compute_of(model) == options.compute);
    rt_model_release(model);
    OK(rt_model_load_buffer(data, size, &options, &model));
    CHECK(compute_of(model) == options.compute);
    rt_model_release(model);
    OK(rt_model_create(&config, NULL, 1, &options, &model));
    CHECK(compute_of(model) == options.compute);
    rt_model_release(model);
  }
  for (options.compute = -1; options.compute <= RT_COMPUTE_BF16 + 1; options.compute += RT_COMPUTE_BF16 + 2) {
    REFUSED(rt_model_load(path, strlen(path), &options, &model), RT_INVALID_ARGUMENT, "options.compute");
    REFUSED(rt_model_load_buffer(data, size, &options, &model), RT_INVALID_ARGUMENT, "options.compute");
    REFUSED(rt_model_create(&config, NULL, 1, &options, &model), RT_INVALID_ARGUMENT, "options.compute");
  }
  CHECK(model == NULL);
}

static void test_memory_limits(void) {
  rt_model_load_options options;
  rt_kv_cache_factory_options pages;
  rt_model_info info;
  rt_kv_cache_usage usage;
  rt_model* model = NULL;
  rt_kv_cache_factory* factory = NULL;
  rt_decode_session *session = NULL, *other = NULL;
  uint32_t token = 65;
  uint64_t required = 0, bytes, length = 0;
  float logits[256];
  char numbers[64];
  OK(rt_model_load(path, strlen(path), NULL, &model));
  info.struct_size = sizeof info;
  OK(rt_model_get_info(model, &info));
  bytes = info.weight_bytes;
  rt_model_release(model);

  OK(rt_model_load_options_init(&options, sizeof options));
  options.memory_limit = bytes - 1;
  REFUSED(rt_model_load(path, strlen(path), &options, &model), RT_OUT_OF_MEMORY, "the weights");
  snprintf(numbers, sizeof numbers, "%llu bytes are needed", (unsigned long long)bytes);
  CHECK(strstr(rt_last_error(), numbers) != NULL);
  snprintf(numbers, sizeof numbers, "the limit is %llu", (unsigned long long)(bytes - 1));
  CHECK(strstr(rt_last_error(), numbers) != NULL);
  options.memory_limit = bytes; /* no room for activations */
  OK(rt_model_load(path, strlen(path), &options, &model));
  REFUSED(rt_model_decode_session_create(model, NULL, &session), RT_OUT_OF_MEMORY, "activations");
  CHECK(session == NULL);
  OK(rt_model_get_info(model, &info));
  CHECK(info.weight_bytes == bytes && info.workspace_bytes == 0 && info.session_count == 0);
  rt_model_release(model);

  /* A pool with room for one page of its four. */
  OK(rt_model_load(path, strlen(path), NULL, &model));
  OK(rt_kv_cache_factory_options_init(&pages, sizeof pages));
  CHECK(pages.memory_limit == 0);
  pages.block_count = 4;
  OK(rt_kv_cache_factory_create(model, &pages, &factory));
  {
    rt_decode_session_options with;
    OK(rt_decode_session_options_init(&with, sizeof with));
    with.factory = factory;
    OK(rt_model_decode_session_create(model, &with, &session));
    OK(rt_decode_session_step(session, token, logits, 256, &required));
    usage.struct_size = sizeof usage;
    OK(rt_kv_cache_factory_get_usage(factory, &usage));
    bytes = usage.allocated_bytes; /* of one page */
    rt_decode_session_release(session);
    rt_kv_cache_factory_release(factory);
    pages.memory_limit = 2 * bytes - 1;
    OK(rt_kv_cache_factory_create(model, &pages, &factory));
    with.factory = factory;
    OK(rt_model_decode_session_create(model, &with, &session));
    OK(rt_model_decode_session_create(model, &with, &other));
  }
  OK(rt_decode_session_step(session, token, logits, 256, &required));
  REFUSED(rt_decode_session_step(other, token, logits, 256, &required), RT_OUT_OF_MEMORY,
          "a key/value cache page");
  OK(rt_decode_session_size(other, &length));
  CHECK(length == 0);
  OK(rt_kv_cache_factory_get_usage(factory, &usage));
  CHECK(usage.allocated_bytes == bytes && usage.free_count == 3);
  OK(rt_decode_session_reset(session));
  OK(rt_decode_session_step(other, token, logits, 256, &required)); /* with the page that is free now */
  CHECK(memcmp(logits, expected, sizeof logits) == 0);
  rt_decode_session_release(session);
  rt_decode_session_release(other);
  rt_kv_cache_factory_release(factory);
  rt_model_release(model);
}

int main(int argc, char** argv) {
  rt_tokenizer* tokenizer = NULL;
  rt_model* model = NULL;
  FILE* file;
  check_begin(argc, argv);
  snprintf(path, sizeof path, "%s/model.rift", check_scratch);
  OK(rt_tokenizer_create_byte(&tokenizer));
  OK(rt_model_create(NULL, tokenizer, 1, NULL, &model));
  logits_of(model, expected);
  OK(rt_model_save(model, path, strlen(path), NULL));
  rt_model_release(model);
  rt_tokenizer_release(tokenizer);
  file = fopen(path, "rb");
  CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
  if (file == NULL) return check_end();
  size = (uint64_t)ftell(file);
  rewind(file);
  data = malloc(size);
  CHECK(data != NULL && fread(data, 1, size, file) == size);
  fclose(file);

  test_descriptor();
  test_buffer();
  test_progress_and_cancel();
  test_types();
  test_compute();
  test_memory_limits();
  free(data);
  return check_end();
}
