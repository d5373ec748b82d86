/* Changing a model: its parameters, its back end, its adapters; refused while sessions are alive. */
#include "c/check.h"

#define VOCABULARY 40
#define WIDTH 16
#define CONTEXT 12

static rt_model* model;
static char path[512];

static void logits(float* out) {
  static const uint32_t tokens[4] = {1, 2, 3, 39};
  uint64_t required = 0;
  OK(rt_model_logits(model, tokens, 4, NULL, out, 4 * VOCABULARY, &required));
}

static rt_model_info info(void) {
  rt_model_info got;
  got.struct_size = sizeof got;
  OK(rt_model_get_info(model, &got));
  return got;
}

static void read_parameter(const char* name, float* values, uint64_t count) {
  uint64_t required = 0;
  OK(rt_model_read_parameter(model, name, strlen(name), values, count, &required));
  CHECK(required == count);
}

#define WRITE(name, values, count) rt_model_write_parameter(model, name, strlen(name), values, count)

static void test_write_parameter(void) {
  static float before[4 * VOCABULARY], after[4 * VOCABULARY];
  float values[WIDTH], back[WIDTH], quarter;
  size_t i;
  const uint64_t epoch = info().parameter_epoch;
  for (i = 0; i < WIDTH; i++) values[i] = 1.0f + (float)i / 8.0f;
  logits(before);
  OK(WRITE("final_norm.weight", values, WIDTH));
  read_parameter("final_norm.weight", back, WIDTH);
  CHECK(memcmp(values, back, sizeof values) == 0);
  CHECK(info().parameter_epoch == epoch + 1);
  logits(after);
  CHECK(memcmp(before, after, sizeof before) != 0);

  quarter = 0.0f;
  values[3] = 1.0f / quarter;
  REFUSED(rt_model_write_parameter(model, "final_norm.weight", 17, values, WIDTH), RT_NON_FINITE,
          "row 0 of final_norm.weight");
  REFUSED(rt_model_write_parameter(model, "final_norm.weight", 17, values, 3), RT_INVALID_ARGUMENT,
          "final_norm.weight has 16 values, 3 are given");
  REFUSED(rt_model_write_parameter(model, "final_norm", 10, values, WIDTH), RT_OUT_OF_RANGE, "final_norm");
  REFUSED(rt_model_write_parameter(model, "final_norm.weight", 17, NULL, WIDTH), RT_INVALID_ARGUMENT,
          "values is NULL");
  REFUSED(rt_model_write_parameter(model, NULL, 17, values, WIDTH), RT_INVALID_ARGUMENT, "name is NULL");
  REFUSED(rt_model_write_parameter(NULL, "final_norm.weight", 17, values, WIDTH), RT_INVALID_ARGUMENT,
          "model is NULL");
  read_parameter("final_norm.weight", values, WIDTH);
  CHECK(memcmp(values, back, sizeof values) == 0);
  CHECK(info().parameter_epoch == epoch + 1);
}

static void test_to(void) {
  OK(rt_model_to(model, RT_BACKEND_CPU));
  REFUSED(rt_model_to(model, RT_BACKEND_CUDA), RT_BACKEND_UNAVAILABLE, "cuda is not compiled in");
  REFUSED(rt_model_to(model, RT_BACKEND_METAL), RT_BACKEND_UNAVAILABLE, "metal");
  REFUSED(rt_model_to(model, RT_BACKEND_TPU), RT_BACKEND_UNAVAILABLE, "tpu");
  REFUSED(rt_model_to(model, 4), RT_INVALID_ARGUMENT, "back end 4");
  REFUSED(rt_model_to(NULL, RT_BACKEND_CPU), RT_INVALID_ARGUMENT, "model is NULL");
}

static void test_options(void) {
  rt_lora_options options, wrong;
  OK(rt_lora_options_init(&options, sizeof options));
  CHECK(options.rank == 8 && options.alpha == 16.0 && options.targets == (RT_LORA_Q | RT_LORA_V));
  CHECK(options.seed == 0);
#define WRONG(field, value, status, text)                       \
  do {                                                          \
    wrong = options;                                            \
    wrong.field = value;                                        \
    REFUSED(rt_model_attach_lora(model, &wrong), status, text); \
  } while (0)
  WRONG(rank, 0, RT_INVALID_ARGUMENT, "rank of adapters is 0");
  WRONG(rank, WIDTH + 1, RT_OUT_OF_RANGE, "rank of 17");
  WRONG(rank, UINT32_MAX, RT_OUT_OF_RANGE, "rank of 4294967295");
  WRONG(targets, 0, RT_INVALID_ARGUMENT, "no target");
  WRONG(targets, 256, RT_INVALID_ARGUMENT, "0x100");
  WRONG(targets, RT_LORA_GATE, RT_INVALID_ARGUMENT, "not gated");
  WRONG(alpha, 0.0, RT_INVALID_ARGUMENT, "alpha 0");
  REFUSED(rt_model_attach_lora(NULL, &options), RT_INVALID_ARGUMENT, "model is NULL");
}

static void test_adapters(void) {
  static float before[4 * VOCABULARY], with[4 * VOCABULARY], merged[4 * VOCABULARY];
  float b[WIDTH * 2], largest = 0.0f;
  rt_lora_options options, got;
  rt_parameter_info parameter;
  const rt_model_info base = info();
  rt_model_info attached;
  size_t i;
  got.struct_size = sizeof got;
  REFUSED(rt_model_get_lora(model, &got), RT_INVALID_STATE, "no adapters");
  REFUSED(rt_model_detach_lora(model), RT_INVALID_STATE, "no adapters");
  REFUSED(rt_model_merge_lora(model), RT_INVALID_STATE, "no adapters");

  logits(before);
  OK(rt_lora_options_init(&options, sizeof options));
  options.rank = 2;
  options.targets = RT_LORA_Q | RT_LORA_DOWN;
  options.seed = 7;
  OK(rt_model_attach_lora(model, &options));
  REFUSED(rt_model_attach_lora(model, &options), RT_INVALID_STATE, "has adapters already");
  logits(with);
  CHECK(memcmp(before, with, sizeof with) == 0); /* B is zero */
  OK(rt_model_get_lora(model, &got));
  CHECK(got.rank == 2 && got.targets == (RT_LORA_Q | RT_LORA_DOWN) && got.alpha == 16.0 && got.seed == 7);
  attached = info();
  CHECK(attached.tensor_count == base.tensor_count + 8);
  CHECK(attached.weight_bytes > base.weight_bytes);
  CHECK(attached.parameter_epoch == base.parameter_epoch + 1);
  parameter.struct_size = sizeof parameter;
  OK(rt_model_parameter(model, base.tensor_count + 1, &parameter));
  CHECK(strcmp(parameter.name, "layers.0.q.lora_b") == 0 && strcmp(parameter.type, "f32") == 0);
  CHECK(parameter.rank == 2 && parameter.shape[0] == WIDTH && parameter.shape[1] == 2);
  REFUSED(rt_model_parameter(model, attached.tensor_count, &parameter), RT_OUT_OF_RANGE, "is not below");
  REFUSED(rt_model_save(model, path, strlen(path), NULL), RT_INVALID_STATE, "merge or detach");

  for (i = 0; i < WIDTH * 2; i++) b[i] = 0.01f * (float)i;
  OK(WRITE("layers.0.q.lora_b", b, WIDTH * 2));
  logits(with);
  CHECK(memcmp(before, with, sizeof with) != 0);
  OK(rt_model_merge_lora(model));
  logits(merged);
  for (i = 0; i < 4 * VOCABULARY; i++) {
    const float difference = merged[i] > with[i] ? merged[i] - with[i] : with[i] - merged[i];
    if (difference > largest) largest = difference;
  }
  CHECK(largest < 1e-5f);
  CHECK(info().tensor_count == base.tensor_count);
  OK(rt_model_attach_lora(model, NULL));
  OK(rt_model_detach_lora(model));
  logits(with);
  CHECK(memcmp(merged, with, sizeof with) == 0);
  REFUSED(rt_model_get_lora(model, NULL), RT_INVALID_STATE, "no adapters");
  REFUSED(rt_model_get_lora(NULL, &got), RT_INVALID_ARGUMENT, "model is NULL");
  REFUSED(rt_model_detach_lora(NULL), RT_INVALID_ARGUMENT, "model is NULL");
  REFUSED(rt_model_merge_lora(NULL), RT_INVALID_ARGUMENT, "model is NULL");
}

static void test_files(void) {
  static float before[4 * VOCABULARY], after[4 * VOCABULARY];
  float b[WIDTH * 8];
  rt_lora_options got;
  size_t i;
  snprintf(path, sizeof path, "%s/adapter.safetensors", check_scratch);
  REFUSED(rt_model_save_lora(model, path, strlen(path)), RT_INVALID_STATE, "no adapters");
  REFUSED(rt_model_load_lora(model, path, strlen(path)), RT_INPUT_OUTPUT, "adapter.safetensors");
  OK(rt_model_attach_lora(model, NULL));
  for (i = 0; i < WIDTH * 8; i++) b[i] = 0.01f * (float)i;
  OK(WRITE("layers.1.v.lora_b", b, WIDTH * 8));
  logits(before);
  OK(rt_model_save_lora(model, path, strlen(path)));
  REFUSED(rt_model_load_lora(model, path, strlen(path)), RT_INVALID_STATE, "has adapters already");
  REFUSED(rt_model_save_lora(model, "folder/", 7), RT_UNSUPPORTED, "save a .safetensors file");
  REFUSED(rt_model_save_lora(model, "a.bin", 5), RT_INVALID_ARGUMENT, "suffix");
  REFUSED(rt_model_save_lora(model, NULL, 5), RT_INVALID_ARGUMENT, "path is NULL");
  REFUSED(rt_model_save_lora(model, "a\0.safetensors", 14), RT_INVALID_ARGUMENT, "NUL");
  REFUSED(rt_model_save_lora(NULL, path, strlen(path)), RT_INVALID_ARGUMENT, "model is NULL");
  OK(rt_model_detach_lora(model));
  REFUSED(rt_model_load_lora(NULL, path, strlen(path)), RT_INVALID_ARGUMENT, "model is NULL");
  REFUSED(rt_model_load_lora(model, NULL, 5), RT_INVALID_ARGUMENT, "path is NULL");
  REFUSED(rt_model_load_lora(model, "a\0b", 3), RT_INVALID_ARGUMENT, "NUL");
  OK(rt_model_load_lora(model, path, strlen(path)));
  logits(after);
  CHECK(memcmp(before, after, sizeof before) == 0);
  got.struct_size = sizeof got;
  OK(rt_model_get_lora(model, &got));
  CHECK(got.rank == 8 && got.alpha == 16.0 && got.targets == (RT_LORA_Q | RT_LORA_V) && got.seed == 0);
  OK(rt_model_detach_lora(model));
}

/* Every call that changes a model is refused, and says how many sessions there are. */
static void expect_held(const char* text) {
  const float one = 1.0f;
  const uint64_t epoch = info().parameter_epoch;
  REFUSED(rt_model_to(model, RT_BACKEND_CPU), RT_INVALID_STATE, text);
  REFUSED(rt_model_write_parameter(model, "final_norm.weight", 17, &one, 1), RT_INVALID_STATE, text);
  REFUSED(rt_model_attach_lora(model, NULL), RT_INVALID_STATE, text);
  REFUSED(rt_model_detach_lora(model), RT_INVALID_STATE, text);
  REFUSED(rt_model_merge_lora(model), RT_INVALID_STATE, text);
  REFUSED(rt_model_load_lora(model, "x", 1), RT_INVALID_STATE, text);
  CHECK(info().parameter_epoch == epoch);
}

static void test_sessions(void) {
  static float before[VOCABULARY], after[VOCABULARY];
  rt_decode_session *session = NULL, *second = NULL;
  rt_generator* generator = NULL;
  const uint32_t prompt = 3;
  rt_generation_options options;
  rt_generation_piece piece;
  uint64_t required = 0;
  OK(rt_model_decode_session_create(model, NULL, &session));
  expect_held(": 1 decode session of the model is alive");
  OK(rt_decode_session_fork(session, &second));
  expect_held(": 2 decode sessions of the model are alive");
  rt_decode_session_release(session);
  expect_held(": 1 decode session of the model is alive");
  snprintf(path, sizeof path, "%s/a.session", check_scratch);
  OK(rt_decode_session_step(second, 3, before, VOCABULARY, &required));
  OK(rt_decode_session_save(second, path, strlen(path)));
  rt_decode_session_release(second);

  OK(rt_generator_create(model, NULL, NULL, &generator));
  OK(rt_model_attach_lora(model, NULL)); /* a generator between generations does not count */
  REFUSED(rt_model_decode_session_load(model, path, strlen(path), NULL, &session), RT_INVALID_ARGUMENT,
          "saved from another model");
  OK(rt_generation_options_init(&options, sizeof options));
  options.max_new_tokens = 1;
  OK(rt_generator_start_tokens(generator, &prompt, 1, &options));
  expect_held(": 1 decode session of the model is alive");
  piece.struct_size = sizeof piece;
  OK(rt_generator_next(generator, &piece));
  OK(rt_model_detach_lora(model));
  rt_generator_release(generator);

  /* The same parameters again; and a session keeps its model. */
  OK(rt_model_decode_session_load(model, path, strlen(path), NULL, &session));
  OK(rt_model_decode_session_create(model, NULL, &second));
  rt_model_release(model);
  OK(rt_decode_session_step(second, 3, after, VOCABULARY, &required));
  CHECK(memcmp(before, after, sizeof before) == 0);
  rt_decode_session_release(session);
  rt_decode_session_release(second);
}

int main(int argc, char** argv) {
  rt_model_config config;
  check_begin(argc, argv);
  snprintf(path, sizeof path, "%s/model.rift", check_scratch);
  OK(rt_model_config_init(&config, sizeof config));
  config.vocabulary_size = VOCABULARY;
  config.maximum_context = CONTEXT;
  config.layer_count = 2;
  config.width = WIDTH;
  config.head_width = 4;
  config.mlp_width = 24;
  OK(rt_model_create(&config, NULL, 1, NULL, &model));
  test_write_parameter();
  test_to();
  test_options();
  test_adapters();
  test_files();
  test_sessions();
  return check_end();
}
