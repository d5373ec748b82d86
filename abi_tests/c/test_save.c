/* Saving in each format and type, with progress and cancelling; parameters and metadata by name; misuse. */
#define _POSIX_C_SOURCE 200809L

#include <dirent.h>
#include <sys/stat.h>

#include "c/check.h"

static rt_tokenizer* tokenizer;
static rt_model* model; /* a llama of two layers */

static void make_model(void) {
  rt_model_config config;
  OK(rt_model_config_init(&config, sizeof config));
  config.layer_count = 2;
  config.width = 64;
  config.kv_head_count = 2;
  config.head_width = 16;
  config.mlp_width = 96;
  config.position = RT_POSITION_ROTARY;
  config.rotary_width = 16;
  config.norm = RT_NORM_RMS;
  config.activation = RT_ACTIVATION_SILU_GATED;
  config.biases = RT_BIAS_Q | RT_BIAS_K | RT_BIAS_V | RT_BIAS_O;
  OK(rt_model_create(&config, tokenizer, 5, NULL, &model));
}

static const char* scratch(const char* name) {
  static char path[600];
  snprintf(path, sizeof path, "%s/%s", check_scratch, name);
  return path;
}

static int entries(void) {
  int count = 0;
  DIR* folder = opendir(check_scratch);
  CHECK(folder != NULL);
  while (folder != NULL && readdir(folder) != NULL) count++;
  if (folder != NULL) closedir(folder);
  return count - 2;
}

static void logits_of(const rt_model* from, float* logits) {
  const uint32_t tokens[] = {72, 105, 33};
  uint64_t required = 0;
  OK(rt_model_logits(from, tokens, 3, NULL, logits, 3 * 256, &required));
}

/* The largest difference of logits from the model's, after saving and loading. */
static float saved(const char* name, const rt_model_save_options* options) {
  static float before[3 * 256], after[3 * 256];
  rt_model* again = NULL;
  const char* path = scratch(name);
  float worst = 0;
  size_t i;
  OK(rt_model_save(model, path, strlen(path), options));
  OK(rt_model_load(path, strlen(path), NULL, &again));
  if (again == NULL) return 1e9f;
  logits_of(model, before);
  logits_of(again, after);
  for (i = 0; i < 3 * 256; i++) {
    const float d = before[i] > after[i] ? before[i] - after[i] : after[i] - before[i];
    if (!(d <= worst)) worst = d;
  }
  rt_model_release(again);
  return worst;
}

static void test_formats_and_types(void) {
  rt_model_save_options options;
  OK(rt_model_save_options_init(&options, sizeof options));
  CHECK(options.format == RT_FORMAT_BY_PATH && options.type == RT_TYPE_KEEP && options.shard_bytes == 0);
  CHECK(saved("a.rift", NULL) == 0);
  CHECK(saved("a.gguf", NULL) == 0); /* bit for bit, although q and k lie in another order there */
  options.format = RT_FORMAT_GGUF;
  CHECK(saved("named.any", &options) == 0);
  options.format = RT_FORMAT_BY_PATH;
  options.type = RT_TYPE_F16;
  CHECK(saved("half.gguf", &options) < 1e-3f && saved("half.rift", &options) < 1e-3f);
  options.type = RT_TYPE_BF16;
  CHECK(saved("bf16.gguf", &options) < 1e-2f);
  options.type = RT_TYPE_Q4_0;
  CHECK(saved("q4.gguf", &options) < 5e-1f && saved("q4.rift", &options) < 5e-1f);
  options.type = RT_TYPE_Q8_0;
  CHECK(saved("q8.gguf", &options) < 5e-2f && saved("q8.rift", &options) < 5e-2f);
}

static void refused_type(int32_t format, int32_t type, const char* name, rt_status status, const char* why) {
  rt_model_save_options options;
  const char* path = scratch(name);
  const int before = entries();
  OK(rt_model_save_options_init(&options, sizeof options));
  options.format = format;
  options.type = type;
  REFUSED(rt_model_save(model, path, strlen(path), &options), status, why);
  CHECK(entries() == before);
}

static void test_misuse(void) {
  rt_model* head = NULL;
  const char* path = scratch("x.any");
  refused_type(RT_FORMAT_BY_PATH, RT_TYPE_KEEP, "x.any", RT_INVALID_ARGUMENT, "the suffix names no format");
  refused_type(4, RT_TYPE_KEEP, "x.any", RT_INVALID_ARGUMENT, "options.format is 4");
  refused_type(-1, RT_TYPE_KEEP, "x.any", RT_INVALID_ARGUMENT, "options.format is -1");
  refused_type(RT_FORMAT_GGUF, 6, "x.any", RT_INVALID_ARGUMENT, "options.type is 6");
  refused_type(RT_FORMAT_HUGGING_FACE, RT_TYPE_Q8_0, "folder", RT_UNSUPPORTED, "q8_0");
  refused_type(RT_FORMAT_HUGGING_FACE, RT_TYPE_F16, "folder", RT_UNSUPPORTED, "byte tokenizer");
  OK(rt_model_create(NULL, NULL, 1, NULL, &head)); /* the native family: a bias at the head */
  path = scratch("head.gguf");
  REFUSED(rt_model_save(head, path, strlen(path), NULL), RT_UNSUPPORTED,
          "a GGUF file cannot hold this model");
  path = scratch("head");
  REFUSED(rt_model_save(head, path, strlen(path), NULL), RT_UNSUPPORTED, "its output head has a bias");
  path = check_scratch; /* a folder with files */
  REFUSED(rt_model_save(model, path, strlen(path), NULL), RT_UNSUPPORTED, "byte tokenizer");
  rt_model_release(head);
}

static void test_folders(void) {
  rt_model_config config;
  rt_model_save_options options;
  rt_model *plain = NULL, *with = model;
  char folder[600];
  struct stat info;
  memset(&config, 0, sizeof config);
  config.struct_size = sizeof config;
  OK(rt_model_get_config(model, &config));
  OK(rt_model_create(&config, NULL, 5, NULL, &plain)); /* without the byte tokenizer */
  model = plain;
  CHECK(saved("folder", NULL) == 0);
  snprintf(folder, sizeof folder, "%s", scratch("folder"));
  REFUSED(rt_model_save(model, folder, strlen(folder), NULL), RT_INPUT_OUTPUT, "not empty");
  CHECK(mkdir(scratch("empty.d"), 0700) == 0);
  CHECK(saved("empty.d", NULL) == 0);
  snprintf(folder, sizeof folder, "%s", scratch("a.gguf")); /* a file is no folder, nor in one */
  OK(rt_model_save_options_init(&options, sizeof options));
  options.format = RT_FORMAT_HUGGING_FACE;
  REFUSED(rt_model_save(model, folder, strlen(folder), &options), RT_INPUT_OUTPUT, "a.gguf");
  snprintf(folder, sizeof folder, "%s", scratch("a.gguf/b"));
  REFUSED(rt_model_save(model, folder, strlen(folder), &options), RT_INPUT_OUTPUT, "a.gguf/b");
  snprintf(folder, sizeof folder, "%s", scratch("no/such"));
  REFUSED(rt_model_save(model, folder, strlen(folder), &options), RT_INPUT_OUTPUT, "no/such");
  options.format = RT_FORMAT_BY_PATH;
  options.shard_bytes = 20000;
  CHECK(saved("shards/", &options) == 0);
  CHECK(stat(scratch("shards/model.safetensors.index.json"), &info) == 0);
  CHECK(stat(scratch("shards/model.safetensors"), &info) != 0);
  model = with;
  rt_model_release(plain);
}

typedef struct {
  uint64_t calls, done, total, cancel_after;
  rt_cancel* cancel;
} watch;

static void on_progress(void* user_data, uint64_t done, uint64_t total) {
  watch* w = user_data;
  CHECK(done >= w->done && done <= total);
  w->done = done;
  w->total = total;
  if (++w->calls == w->cancel_after) rt_cancel_set(w->cancel);
}

static void test_progress_and_cancel(void) {
  static const char* const kNames[] = {"c.rift", "c.gguf"};
  rt_model_save_options options;
  watch w;
  size_t i;
  memset(&w, 0, sizeof w);
  OK(rt_cancel_create(&w.cancel));
  OK(rt_model_save_options_init(&options, sizeof options));
  options.progress = on_progress;
  options.progress_user_data = &w;
  options.cancel = w.cancel;
  for (i = 0; i < 2; i++) {
    const char* path = scratch(kNames[i]);
    const int before = entries();
    uint64_t calls;
    w.calls = w.done = w.cancel_after = 0;
    OK(rt_model_save(model, path, strlen(path), &options));
    CHECK(w.calls > 10 && w.done == w.total && w.total > 4 * 64 * 256);
    CHECK(remove(path) == 0);
    calls = w.calls;
    for (w.cancel_after = 1; w.cancel_after <= calls; w.cancel_after++) { /* at every point */
      w.calls = w.done = 0;
      REFUSED(rt_model_save(model, path, strlen(path), &options), RT_CANCELLED, "saving");
      CHECK(entries() == before);
      rt_cancel_reset(w.cancel);
    }
  }
  rt_cancel_release(w.cancel);
}

static void test_parameters(void) {
  static float values[256 * 64];
  rt_model_info info;
  rt_parameter_info p;
  uint64_t required = 0, i, seen = 0, count = 0;
  info.struct_size = sizeof info;
  p.struct_size = sizeof p;
  OK(rt_model_get_info(model, &info));
  for (i = 0; i < info.tensor_count; i++) {
    OK(rt_model_parameter(model, i, &p));
    OK(rt_model_read_parameter(model, p.name, strlen(p.name), NULL, 0, &required));
    CHECK(required == p.shape[0] * p.shape[1] && strcmp(p.type, "f32") == 0);
    count += required;
    if (strcmp(p.name, "layers.1.k.weight") == 0) seen += p.rank == 2 && p.shape[0] == 32 && p.shape[1] == 64;
    if (strcmp(p.name, "layers.0.q.bias") == 0) seen += p.rank == 1 && p.shape[0] == 64 && p.shape[1] == 1;
  }
  CHECK(seen == 2 && count == info.parameter_count);
  REFUSED(rt_model_parameter(model, info.tensor_count, &p), RT_OUT_OF_RANGE, "is not below");
  REFUSED(rt_model_parameter(model, 0, NULL), RT_INVALID_ARGUMENT, "info is NULL");
  REFUSED(rt_model_parameter(NULL, 0, &p), RT_INVALID_ARGUMENT, "model is NULL");
  OK(rt_model_read_parameter(model, "final_norm.weight", 17, values, 64, &required));
  for (i = 0; i < 64; i++) CHECK(values[i] == 1);
  REFUSED(rt_model_read_parameter(model, "final_norm.weight", 17, values, 63, &required), RT_BUFFER_TOO_SMALL,
          "63");
  REFUSED(rt_model_read_parameter(model, "final_norm", 10, values, 64, &required), RT_OUT_OF_RANGE,
          "no parameter \"final_norm\"");
  REFUSED(rt_model_read_parameter(model, NULL, 1, values, 64, &required), RT_INVALID_ARGUMENT, "name");
  REFUSED(rt_model_read_parameter(model, "q", 1, values, 64, NULL), RT_INVALID_ARGUMENT, "required");
}

static void test_stage_and_parent(void) {
  rt_model* again = NULL;
  rt_model_save_options options;
  char text[64];
  const char* path = scratch("stage.rift");
  uint64_t required = 0;
  OK(rt_model_save_options_init(&options, sizeof options));
  CHECK(options.stage == NULL && options.stage_size == 0 && options.parent == NULL &&
        options.parent_size == 0);
  options.stage = "pretrained";
  options.stage_size = 10;
  options.parent = "base.rift";
  options.parent_size = 9;
  OK(rt_model_save(model, path, strlen(path), &options));
  OK(rt_model_load(path, strlen(path), NULL, &again));
  OK(rt_model_metadata(again, "riftco.stage", 12, text, sizeof text, &required));
  CHECK(required == 10 && memcmp(text, "pretrained", 10) == 0);
  OK(rt_model_metadata(again, "riftco.parent", 13, text, sizeof text, &required));
  CHECK(required == 9 && memcmp(text, "base.rift", 9) == 0);
  rt_model_release(again);
  path = scratch("stage.gguf");
  REFUSED(rt_model_save(model, path, strlen(path), &options), RT_UNSUPPORTED,
          "only .rift files hold a stage");
  options.stage_size = 0;
  REFUSED(rt_model_save(model, path, strlen(path), &options), RT_UNSUPPORTED, "or a parent");
  path = scratch("bad.rift");
  options.parent = "\xff";
  options.parent_size = 1;
  REFUSED(rt_model_save(model, path, strlen(path), &options), RT_INVALID_ARGUMENT, "UTF-8");
  options.parent = NULL;
  REFUSED(rt_model_save(model, path, strlen(path), &options), RT_INVALID_ARGUMENT, "options.parent");
}

static void test_metadata(void) {
  rt_model* again = NULL;
  rt_model_info info;
  char text[4096];
  const char* path = scratch("a.gguf");
  uint64_t required = 0, i;
  int found = 0;
  OK(rt_model_load(path, strlen(path), NULL, &again));
  info.struct_size = sizeof info;
  OK(rt_model_get_info(again, &info));
  CHECK(info.metadata_count > 10);
  for (i = 0; i < info.metadata_count; i++) {
    OK(rt_model_metadata_key(again, i, text, sizeof text, &required));
    found += required == 17 && memcmp(text, "llama.block_count", 17) == 0;
  }
  CHECK(found == 1);
  OK(rt_model_metadata(again, "llama.block_count", 17, text, sizeof text, &required));
  CHECK(required == 1 && text[0] == '2');
  REFUSED(rt_model_metadata(again, "llama.block_count", 17, text, 0, &required), RT_BUFFER_TOO_SMALL, "text");
  REFUSED(rt_model_metadata(again, "no", 2, text, sizeof text, &required), RT_OUT_OF_RANGE, "no key \"no\"");
  REFUSED(rt_model_metadata(again, NULL, 1, text, 1, &required), RT_INVALID_ARGUMENT, "key is NULL");
  REFUSED(rt_model_metadata(NULL, "a", 1, text, 1, &required), RT_INVALID_ARGUMENT, "model is NULL");
  REFUSED(rt_model_metadata_key(again, info.metadata_count, text, 1, &required), RT_OUT_OF_RANGE, "below");
  REFUSED(rt_model_metadata_key(again, 0, NULL, 1, &required), RT_INVALID_ARGUMENT, "key is NULL");
  rt_model_release(again);
}

int main(int argc, char** argv) {
  check_begin(argc, argv);
  OK(rt_tokenizer_create_byte(&tokenizer));
  make_model();
  test_formats_and_types();
  test_misuse();
  test_folders();
  test_progress_and_cancel();
  test_parameters();
  test_stage_and_parent();
  test_metadata();
  rt_model_release(model);
  rt_tokenizer_release(tokenizer);
  return check_end();
}
