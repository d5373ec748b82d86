/* Models: creating, saving, loading, describing, logits of a sequence; use and misuse. */
#include "c/check.h"

#define VOCABULARY 300
#define CONTEXT 20

static rt_tokenizer* tokenizer;
static rt_model* model;
static char path[512];

static void make_config(rt_model_config* config) {
  OK(rt_model_config_init(config, sizeof *config));
  config->vocabulary_size = VOCABULARY;
  config->maximum_context = CONTEXT;
  config->layer_count = 2;
  config->width = 32;
  config->kv_head_count = 2;
  config->head_width = 8;
  config->mlp_width = 48;
  config->position = RT_POSITION_ROTARY;
  config->rotary_width = 8;
  config->norm = RT_NORM_RMS;
  config->activation = RT_ACTIVATION_SILU_GATED;
  config->biases = 0;
  config->tied_head = 1;
}

static void test_create(void) {
  rt_model_load_options options;
  rt_model_config config, wrong, got;
  rt_model_info info;
  rt_model* made = (rt_model*)&config;
  make_config(&config);
  OK(rt_model_load_options_init(&options, sizeof options));
  CHECK(options.backend == RT_BACKEND_CPU && options.threads == 0);

#define WRONG(field, value, status, text)                                 \
  do {                                                                    \
    wrong = config;                                                       \
    wrong.field = value;                                                  \
    REFUSED(rt_model_create(&wrong, NULL, 1, NULL, &made), status, text); \
    CHECK(made == NULL);                                                  \
  } while (0)
  WRONG(vocabulary_size, 0, RT_INVALID_ARGUMENT, "vocabulary_size is 0");
  WRONG(layer_count, UINT32_MAX, RT_INVALID_ARGUMENT, "layer_count is 4294967295");
  WRONG(width, UINT32_MAX, RT_INVALID_ARGUMENT, "width is 4294967295");
  WRONG(kv_head_count, 3, RT_INVALID_ARGUMENT, "kv_head_count 3");
  WRONG(head_width, 0, RT_INVALID_ARGUMENT, "head_width is 0");
  WRONG(position, 2, RT_INVALID_ARGUMENT, "config.position is 2");
  WRONG(position, -1, RT_INVALID_ARGUMENT, "config.position is -1");
  WRONG(norm, 2, RT_INVALID_ARGUMENT, "config.norm is 2");
  WRONG(activation, 3, RT_INVALID_ARGUMENT, "config.activation is 3");
  WRONG(biases, 512, RT_INVALID_ARGUMENT, "biases 0x200");
  WRONG(tied_head, 2, RT_INVALID_ARGUMENT, "config.tied_head is 2");
  WRONG(rotary_width, 3, RT_INVALID_ARGUMENT, "rotary_width 3");
  WRONG(rotary_base, 0.0, RT_INVALID_ARGUMENT, "rotary_base 0");
  WRONG(norm_epsilon, -1.0, RT_INVALID_ARGUMENT, "norm_epsilon -1");
  WRONG(rotary_scaling, 5, RT_INVALID_ARGUMENT, "config.rotary_scaling is 5");
  WRONG(rotary_scaling, RT_ROTARY_SCALING_LLAMA3, RT_INVALID_ARGUMENT, "rotary_original_context 0");
  WRONG(rotary_original_context, 1, RT_INVALID_ARGUMENT, "rotary_original_context 1");
  WRONG(rotary_factor, 2.0, RT_INVALID_ARGUMENT, "rotary_factor 2");
  WRONG(rotary_slow_rotations, 1.0, RT_INVALID_ARGUMENT, "rotary_slow_rotations 1");
  WRONG(rotary_fast_rotations, 1.0, RT_INVALID_ARGUMENT, "rotary_fast_rotations 1");
  WRONG(rotary_attention_factor, 0.0, RT_INVALID_ARGUMENT, "rotary_attention_factor 0");
  WRONG(sliding_window, UINT32_MAX, RT_INVALID_ARGUMENT, "sliding_window 4294967295");
  WRONG(first_window_layer, 1, RT_INVALID_ARGUMENT, "first_window_layer is 1");
  WRONG(qk_norm, 2, RT_INVALID_ARGUMENT, "config.qk_norm is 2");
  WRONG(reserved, 1, RT_INVALID_ARGUMENT, "config.reserved is 1");
  wrong = config;
  wrong.vocabulary_size = 255;
  REFUSED(rt_model_create(&wrong, tokenizer, 1, NULL, &made), RT_INVALID_ARGUMENT, "256");
  REFUSED(rt_model_create(&config, NULL, 1, NULL, NULL), RT_INVALID_ARGUMENT, "model is NULL");
  options.backend = RT_BACKEND_CUDA;
  REFUSED(rt_model_create(&config, NULL, 1, &options, &made), RT_BACKEND_UNAVAILABLE, "cuda");
  options.backend = RT_BACKEND_CPU;
  options.threads = 2;
  OK(rt_model_create(&config, tokenizer, 1, &options, &model));

  memset(&got, 0, sizeof got);
  got.struct_size = sizeof got;
  OK(rt_model_get_config(model, &got));
  CHECK(memcmp(&got, &config, sizeof got) == 0);
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  OK(rt_model_get_info(model, &info));
  CHECK(info.backend == RT_BACKEND_CPU && info.threads == 2 && info.session_count == 0);
  /* embedding, two layers of q, k, v, o, gate, up, down and two norms, the final norm */
  CHECK(info.parameter_count == 300 * 32 + 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32 + 2 * 32) + 32);
  CHECK(info.weight_bytes >= 4 * info.parameter_count);
  CHECK(info.workspace_bytes < 1 << 30);
  REFUSED(rt_model_get_config(NULL, &got), RT_INVALID_ARGUMENT, "model is NULL");
  REFUSED(rt_model_get_info(model, NULL), RT_INVALID_ARGUMENT, "info is NULL");
}

static void test_logits(void) {
  static float all[CONTEXT * VOCABULARY], again[CONTEXT * VOCABULARY];
  uint32_t tokens[CONTEXT + 1];
  uint64_t required = 0;
  rt_decode_session* session = NULL;
  rt_cancel* cancel = NULL;
  size_t i;
  for (i = 0; i <= CONTEXT; i++) tokens[i] = (uint32_t)(7 * i);
  OK(rt_model_logits(model, tokens, 3, NULL, NULL, 0, &required)); /* a size query */
  CHECK(required == 3 * VOCABULARY);
  REFUSED(rt_model_logits(model, tokens, 3, NULL, all, 3 * VOCABULARY - 1, &required), RT_BUFFER_TOO_SMALL,
          "a capacity of 899 is below the 900 required");
  CHECK(required == 3 * VOCABULARY);
  REFUSED(rt_model_logits(NULL, tokens, 3, NULL, all, sizeof all, &required), RT_INVALID_ARGUMENT,
          "model is NULL");
  REFUSED(rt_model_logits(model, NULL, 3, NULL, all, 900, &required), RT_INVALID_ARGUMENT, "tokens is NULL");
  REFUSED(rt_model_logits(model, tokens, 3, NULL, NULL, 900, &required), RT_INVALID_ARGUMENT,
          "logits is NULL");
  REFUSED(rt_model_logits(model, tokens, 3, NULL, all, 900, NULL), RT_INVALID_ARGUMENT, "required is NULL");
  REFUSED(rt_model_logits(model, tokens, CONTEXT + 1, NULL, NULL, 0, &required), RT_CONTEXT_FULL, "21");
  REFUSED(rt_model_logits(model, tokens, 3, (const rt_cancel*)tokenizer, all, 900, &required),
          RT_INVALID_ARGUMENT, "cancel is not a live cancel handle");
  tokens[2] = VOCABULARY;
  REFUSED(rt_model_logits(model, tokens, 3, NULL, all, 900, &required), RT_OUT_OF_RANGE, "token 300");
  tokens[2] = 14;
  OK(rt_cancel_create(&cancel));
  rt_cancel_set(cancel);
  REFUSED(rt_model_logits(model, tokens, 3, cancel, all, 900, &required), RT_CANCELLED, "cancelled");
  rt_cancel_reset(cancel);

  OK(rt_model_logits(model, tokens, CONTEXT, cancel, all, CONTEXT * VOCABULARY, &required));
  rt_cancel_release(cancel);
  OK(rt_model_decode_session_create(model, NULL, &session));
  for (i = 0; i < CONTEXT; i++)
    OK(rt_decode_session_step(session, tokens[i], again + i * VOCABULARY, VOCABULARY, &required));
  rt_decode_session_release(session);
  CHECK(memcmp(all, again, sizeof all) == 0); /* bit for bit those of decoding it token by token */
}

static void test_save_and_load(void) {
  static float before[VOCABULARY], after[VOCABULARY];
  const uint32_t token = 3;
  uint64_t required = 0;
  rt_model* loaded = NULL;
  char missing[600];
  FILE* file;
  snprintf(missing, sizeof missing, "%s/no/such/folder.rift", check_scratch);
  REFUSED(rt_model_save(model, missing, strlen(missing), NULL), RT_INPUT_OUTPUT, "no/such");
  REFUSED(rt_model_save(NULL, path, strlen(path), NULL), RT_INVALID_ARGUMENT, "model is NULL");
  REFUSED(rt_model_save(model, NULL, 4, NULL), RT_INVALID_ARGUMENT, "path is NULL");
  REFUSED(rt_model_save(model, "a\0b", 3, NULL), RT_INVALID_ARGUMENT, "NUL");
  REFUSED(rt_model_load(missing, strlen(missing), NULL, &loaded), RT_INPUT_OUTPUT, "no/such");
  REFUSED(rt_model_load("a\0b", 3, NULL, &loaded), RT_INVALID_ARGUMENT, "NUL");
  REFUSED(rt_model_load(NULL, 1, NULL, &loaded), RT_INVALID_ARGUMENT, "path is NULL");
  CHECK(rt_model_load(NULL, 0, NULL, &loaded) != RT_OK && loaded == NULL);

  OK(rt_model_save(model, path, strlen(path), NULL));
  REFUSED(rt_model_load(path, strlen(path), NULL, NULL), RT_INVALID_ARGUMENT, "model is NULL");
  OK(rt_model_load(path, strlen(path), NULL, &loaded));
  OK(rt_model_logits(model, &token, 1, NULL, before, VOCABULARY, &required));
  OK(rt_model_logits(loaded, &token, 1, NULL, after, VOCABULARY, &required));
  CHECK(memcmp(before, after, sizeof before) == 0);
  rt_model_release(loaded);

  snprintf(missing, sizeof missing, "%s/broken.gguf", check_scratch);
  file = fopen(missing, "w");
  CHECK(file != NULL && fwrite("GGUF\3\0\0\0", 1, 8, file) == 8);
  if (file != NULL) fclose(file);
  REFUSED(rt_model_load(missing, strlen(missing), NULL, &loaded), RT_CORRUPT_DATA, "broken.gguf");
  CHECK(loaded == NULL);
}

static void test_inspect(void) {
  static char json[65536];
  uint64_t required = 0, size = 0;
  OK(rt_model_inspect(path, strlen(path), NULL, 0, &required));
  CHECK(required > 2 && required < sizeof json);
  REFUSED(rt_model_inspect(path, strlen(path), json, 2, &size), RT_BUFFER_TOO_SMALL, "a capacity of 2");
  CHECK(size == required);
  OK(rt_model_inspect(path, strlen(path), json, sizeof json, &size));
  CHECK(size == required && json[0] == '{' && json[size - 1] == '}');
  REFUSED(rt_model_inspect(path, strlen(path), NULL, 2, &size), RT_INVALID_ARGUMENT, "json is NULL");
  REFUSED(rt_model_inspect(path, strlen(path), json, 2, NULL), RT_INVALID_ARGUMENT, "required is NULL");
  REFUSED(rt_model_inspect("/nowhere", 8, json, 2, &size), RT_INPUT_OUTPUT, "/nowhere");
}

static void test_tokenizer(void) {
  rt_tokenizer_info info;
  rt_tokenizer* own = NULL;
  rt_model* without = NULL;
  OK(rt_model_tokenizer(model, &own));
  info.struct_size = sizeof info;
  OK(rt_tokenizer_get_info(own, &info));
  CHECK(info.vocabulary_size == 256);
  rt_tokenizer_release(own);
  REFUSED(rt_model_tokenizer(model, NULL), RT_INVALID_ARGUMENT, "tokenizer is NULL");
  REFUSED(rt_model_tokenizer(NULL, &own), RT_INVALID_ARGUMENT, "model is NULL");
  OK(rt_model_create(NULL, NULL, 1, NULL, &without)); /* NULL: the defaults */
  REFUSED(rt_model_tokenizer(without, &own), RT_INVALID_STATE, "no tokenizer");
  CHECK(own == NULL);
  rt_model_release(without);
}

int main(int argc, char** argv) {
  check_begin(argc, argv);
  snprintf(path, sizeof path, "%s/model.rift", check_scratch);
  OK(rt_tokenizer_create_byte(&tokenizer));
  test_create();
  test_logits();
  test_save_and_load();
  test_inspect();
  test_tokenizer();
  rt_tokenizer_release(tokenizer);
  rt_model_release(model);
  return check_end();
}
