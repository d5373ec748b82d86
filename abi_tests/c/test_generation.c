/* Generators: the life of a generation, and every documented misuse with what holds after it. */
#include "c/check.h"

#define CONTEXT 24
#define MOST 128

static rt_tokenizer* tokenizer;
static rt_model* model; /* learned positions, 256 byte tokens, 24 positions */
static rt_generator* generator;
static rt_generation_options options;
static rt_generation_piece piece;

typedef struct {
  char text[4 * MOST];
  uint32_t tokens[MOST];
  size_t text_size, token_count;
  int32_t finish;
} answer;

/* Pulls the rest of a generation. */
static void finish(rt_generator* g, answer* a) {
  memset(a, 0, sizeof *a);
  do {
    if (rt_generator_next(g, &piece) != RT_OK || a->text_size + piece.size > sizeof a->text ||
        a->token_count == MOST) {
      check_fail(__FILE__, __LINE__, "rt_generator_next");
      return;
    }
    memcpy(a->text + a->text_size, piece.bytes, (size_t)piece.size);
    a->text_size += (size_t)piece.size;
    if (piece.token != RT_NO_TOKEN) a->tokens[a->token_count++] = piece.token;
    CHECK(piece.log_probability <= 0 && piece.processed_log_probability <= 0 && piece.alternative_count == 0);
  } while (piece.finish == RT_FINISH_NONE);
  a->finish = piece.finish;
}

static int same(const answer* a, const answer* b) {
  return a->finish == b->finish && a->token_count == b->token_count && a->text_size == b->text_size &&
         memcmp(a->tokens, b->tokens, a->token_count * sizeof *a->tokens) == 0 &&
         memcmp(a->text, b->text, a->text_size) == 0;
}

static rt_status start(const char* prompt) {
  return rt_generator_start(generator, prompt, strlen(prompt), &options);
}

static void generate(const char* prompt, answer* a) {
  OK(start(prompt));
  finish(generator, a);
}

static void defaults(void) {
  OK(rt_generation_options_init(&options, sizeof options));
  options.max_new_tokens = 8;
}

static void test_create(void) {
  rt_generator* made = NULL;
  rt_kv_cache_factory* foreign = NULL;
  rt_model_config config;
  rt_model* wide = NULL;
  REFUSED(rt_generator_create(NULL, NULL, NULL, &made), RT_INVALID_ARGUMENT, "model is NULL");
  REFUSED(rt_generator_create(model, NULL, NULL, NULL), RT_INVALID_ARGUMENT, "generator is NULL");
  REFUSED(rt_generator_create(model, (rt_tokenizer*)model, NULL, &made), RT_INVALID_ARGUMENT,
          "tokenizer is not a live tokenizer handle");
  REFUSED(rt_generator_create(model, NULL, (rt_kv_cache_factory*)model, &made), RT_INVALID_ARGUMENT,
          "factory is not a live cache factory handle");
  OK(rt_model_config_init(&config, sizeof config));
  OK(rt_model_create(&config, NULL, 1, NULL, &wide));
  OK(rt_kv_cache_factory_create(wide, NULL, &foreign));
  rt_model_release(wide);
  REFUSED(rt_generator_create(model, NULL, foreign, &made), RT_INVALID_ARGUMENT, "width 32");
  CHECK(made == NULL);
  rt_kv_cache_factory_release(foreign);
}

static void test_before_start(void) {
  float* logits = NULL;
  uint64_t count = 0;
  REFUSED(rt_generator_next(generator, &piece), RT_INVALID_STATE, "no generation is running");
  REFUSED(rt_generator_next(NULL, &piece), RT_INVALID_ARGUMENT, "generator is NULL");
  REFUSED(rt_generator_next(generator, NULL), RT_INVALID_ARGUMENT, "piece is NULL");
  REFUSED(rt_generator_logits(generator, &logits, &count), RT_INVALID_STATE, "no generation is running");
  REFUSED(rt_generator_logits(generator, NULL, &count), RT_INVALID_ARGUMENT, "logits is NULL");
  REFUSED(rt_generator_logits(generator, &logits, NULL), RT_INVALID_ARGUMENT, "count is NULL");
  REFUSED(rt_generator_get_stats(generator, NULL), RT_INVALID_ARGUMENT, "stats is NULL");
}

static void test_life(void) {
  static answer greedy, other;
  rt_generation_stats stats;
  float* logits = NULL;
  uint64_t count = 0;
  defaults();
  generate("Tensor:", &greedy);
  CHECK(greedy.token_count == 8 && greedy.finish == RT_FINISH_LENGTH);
  REFUSED(rt_generator_next(generator, &piece), RT_INVALID_STATE, "no generation is running");
  stats.struct_size = sizeof stats;
  OK(rt_generator_get_stats(generator, &stats));
  CHECK(stats.prompt_tokens == 7 && stats.reused_tokens == 0 && stats.new_tokens == 8 &&
        stats.rollovers == 0);
  CHECK(stats.prefill_seconds > 0 && stats.decode_seconds > 0);

  generate("Tensor:", &other); /* the same again, from the cache */
  CHECK(same(&greedy, &other));
  OK(rt_generator_get_stats(generator, &stats));
  CHECK(stats.reused_tokens == 6);
  OK(rt_generator_start_tokens(generator, (const uint32_t[]){'T', 'e', 'n', 's', 'o', 'r', ':'}, 7,
                               &options));
  finish(generator, &other);
  CHECK(same(&greedy, &other));

  options.temperature = 1.0f;
  options.seed = 42;
  options.top_k = 50;
  options.top_p = 0.9f;
  options.min_p = 0.01f;
  generate("Tensor:", &greedy);
  generate("Tensor:", &other);
  CHECK(same(&greedy, &other));

  /* A logits hook. */
  defaults();
  OK(start("Tensor:"));
  OK(rt_generator_logits(generator, &logits, &count));
  CHECK(count == 256);
  logits['!'] = 1000.0f;
  OK(rt_generator_next(generator, &piece));
  CHECK(piece.token == '!' && piece.size == 1 && piece.bytes[0] == '!' && piece.finish == RT_FINISH_NONE);
  CHECK(piece.log_probability == 0);

  /* Starting anew drops what is running. */
  generate("Tensor:", &other);
  CHECK(other.token_count == 8);
}

static void test_stops(void) {
  static answer plain, stopped;
  rt_text stop[2];
  uint32_t token;
  defaults();
  options.max_new_tokens = 16;
  generate("abc", &plain);
  CHECK(plain.token_count == 16);

  token = plain.tokens[3];
  options.stop_tokens = &token;
  options.stop_token_count = 1;
  generate("abc", &stopped);
  CHECK(stopped.finish == RT_FINISH_STOP && stopped.token_count <= 4);
  CHECK(stopped.tokens[stopped.token_count - 1] == token);
  options.stop_token_count = 0;

  /* No part of a stop string is given out. */
  stop[0].data = "never there";
  stop[0].size = 11;
  stop[1].data = plain.text + 2;
  stop[1].size = 2;
  options.stop_strings = stop;
  options.stop_string_count = 2;
  generate("abc", &stopped);
  CHECK(stopped.finish == RT_FINISH_STOP && stopped.text_size <= 2);
  CHECK(memcmp(stopped.text, plain.text, stopped.text_size) == 0);
}

/* Each is refused, and then no generation is running, although one was before. */
#define START_REFUSED(prompt, size, status, text)                                                \
  do {                                                                                           \
    defaults_running();                                                                          \
    REFUSED(rt_generator_start(generator, prompt, size, &changed), status, text);                \
    REFUSED(rt_generator_next(generator, &piece), RT_INVALID_STATE, "no generation is running"); \
    changed = options;                                                                           \
  } while (0)

static rt_generation_options changed;

static void defaults_running(void) {
  OK(start("running"));
  OK(rt_generator_next(generator, &piece));
}

static void test_refused_starts(void) {
  static answer before, after;
  static const char long_prompt[CONTEXT + 1] = {0};
  const uint32_t bad_token = 256;
  const rt_text empty = {NULL, 0}, null_text = {NULL, 4};
  defaults();
  changed = options;
  generate("before", &before);
  START_REFUSED("", 0, RT_INVALID_ARGUMENT, "prompt");
  START_REFUSED(NULL, 3, RT_INVALID_ARGUMENT, "prompt is NULL");
  changed.max_new_tokens = 0;
  START_REFUSED("a", 1, RT_INVALID_ARGUMENT, "max_new_tokens is 0");
  changed.temperature = -1.0f;
  START_REFUSED("a", 1, RT_INVALID_ARGUMENT, "temperature");
  changed.top_p = 0.0f;
  START_REFUSED("a", 1, RT_INVALID_ARGUMENT, "top_p");
  changed.top_p = 1.5f;
  START_REFUSED("a", 1, RT_INVALID_ARGUMENT, "top_p");
  changed.min_p = -0.5f;
  START_REFUSED("a", 1, RT_INVALID_ARGUMENT, "min_p");
  changed.ignore_eos = 2;
  START_REFUSED("a", 1, RT_INVALID_ARGUMENT, "options.ignore_eos is 2");
  changed.parse_special = 2;
  START_REFUSED("a", 1, RT_INVALID_ARGUMENT, "options.parse_special is 2");
  changed.rollover = 4;
  START_REFUSED("a", 1, RT_INVALID_ARGUMENT, "options.rollover is 4");
  changed.rollover_keep = 3;
  START_REFUSED("a", 1, RT_INVALID_ARGUMENT, "rollover_keep 3");
  changed.rollover = RT_ROLLOVER_KEEP;
  START_REFUSED("a", 1, RT_OUT_OF_RANGE, "rollover_keep 0");
  changed.rollover = RT_ROLLOVER_KEEP;
  changed.rollover_keep = CONTEXT;
  START_REFUSED("a", 1, RT_OUT_OF_RANGE, "rollover_keep 24");
  changed.rollover = RT_ROLLOVER_STOP;
  START_REFUSED(long_prompt, CONTEXT + 1, RT_CONTEXT_FULL, "25");
  CHECK(strstr(rt_last_error(), "running") != NULL);
  changed.stop_string_count = 1;
  START_REFUSED("a", 1, RT_INVALID_ARGUMENT, "options.stop_strings is NULL");
  changed.stop_strings = &empty;
  changed.stop_string_count = 1;
  START_REFUSED("a", 1, RT_INVALID_ARGUMENT, "stop string");
  changed.stop_strings = &null_text;
  changed.stop_string_count = 1;
  START_REFUSED("a", 1, RT_INVALID_ARGUMENT, "NULL");
  changed.stop_token_count = 2;
  START_REFUSED("a", 1, RT_INVALID_ARGUMENT, "options.stop_tokens is NULL");
  changed.stop_tokens = &bad_token;
  changed.stop_token_count = 1;
  START_REFUSED("a", 1, RT_OUT_OF_RANGE, "stop token 256");
  changed.cancel = (const rt_cancel*)model;
  START_REFUSED("a", 1, RT_INVALID_ARGUMENT, "options.cancel is not a live cancel handle");

  REFUSED(rt_generator_start_tokens(generator, &bad_token, 1, &options), RT_OUT_OF_RANGE, "token 256");
  REFUSED(rt_generator_start_tokens(generator, NULL, 1, &options), RT_INVALID_ARGUMENT, "tokens is NULL");
  REFUSED(rt_generator_start_tokens(generator, &bad_token, 0, &options), RT_INVALID_ARGUMENT, "prompt");
  REFUSED(rt_generator_start(NULL, "a", 1, NULL), RT_INVALID_ARGUMENT, "generator is NULL");
  generate("before", &after);
  CHECK(same(&before, &after));
}

/* A failing next loses nothing. */
static void test_refused_next(void) {
  static answer plain, interrupted;
  static char small[8];
  rt_cancel* cancel = NULL;
  float* logits = NULL;
  uint64_t count = 0;
  defaults();
  generate("Cancel", &plain);
  OK(rt_cancel_create(&cancel));
  options.cancel = cancel;
  rt_cancel_set(cancel);
  REFUSED(rt_generator_start(generator, "Cancel", 6, &options), RT_CANCELLED, "cancelled");
  REFUSED(rt_generator_next(generator, &piece), RT_INVALID_STATE, "no generation is running");
  rt_cancel_reset(cancel);
  OK(start("Cancel"));
  rt_cancel_set(cancel);
  REFUSED(rt_generator_next(generator, &piece), RT_CANCELLED, "cancelled");
  REFUSED(rt_generator_logits(generator, &logits, &count), RT_CANCELLED, "cancelled");
  rt_cancel_reset(cancel);
  memset(small, 0, sizeof small);
  small[0] = 8; /* a struct_size below the first release */
  REFUSED(rt_generator_next(generator, (rt_generation_piece*)(void*)small), RT_INVALID_ARGUMENT,
          "struct_size");
  finish(generator, &interrupted);
  CHECK(same(&plain, &interrupted));
  rt_cancel_release(cancel);
}

/* The three policies of a full context. */
static void test_rollover(void) {
  static answer a;
  rt_generation_stats stats;
  stats.struct_size = sizeof stats;
  defaults();
  options.max_new_tokens = 60; /* window is the default of learned positions */
  generate("0123456789", &a);
  CHECK(a.token_count == 60 && a.finish == RT_FINISH_LENGTH);
  OK(rt_generator_get_stats(generator, &stats));
  CHECK(stats.rollovers == 60 + 10 - 1 - CONTEXT && stats.new_tokens == 60);
  options.rollover = RT_ROLLOVER_KEEP;
  options.rollover_keep = 4;
  generate("0123456789", &a);
  CHECK(a.token_count == 60);
  OK(rt_generator_get_stats(generator, &stats));
  CHECK(stats.rollovers == 3);
  options.rollover = RT_ROLLOVER_STOP;
  options.rollover_keep = 0;
  generate("0123456789", &a);
  CHECK(a.finish == RT_FINISH_LENGTH && a.token_count == CONTEXT - 10 + 1);
}

/* A pool that is too small for the sequence: nothing is lost, and with a page the generation goes on. */
static void test_cache_exhausted(void) {
  static answer expected, resumed;
  rt_kv_cache_factory_options factory_options;
  rt_kv_cache_factory* factory = NULL;
  rt_generator* small = NULL;
  rt_decode_session_options session_options;
  rt_decode_session* session = NULL;
  static float logits[256];
  uint64_t required = 0;
  int i;
  defaults();
  options.max_new_tokens = 12;
  generate("abcd", &expected);
  OK(rt_kv_cache_factory_options_init(&factory_options, sizeof factory_options));
  factory_options.block_size = 4;
  factory_options.block_count = 4;
  OK(rt_kv_cache_factory_create(model, &factory_options, &factory));
  OK(rt_generator_create(model, tokenizer, factory, &small));
  OK(rt_decode_session_options_init(&session_options, sizeof session_options));
  session_options.factory = factory;
  OK(rt_model_decode_session_create(model, &session_options, &session));
  for (i = 0; i < 5; i++)
    OK(rt_decode_session_step(session, 1, logits, 256, &required)); /* takes 2 of 4 pages */
  OK(rt_generator_start(small, "abcd", 4, &options));
  for (i = 0; i < 5; i++) OK(rt_generator_next(small, &piece));
  REFUSED(rt_generator_next(small, &piece), RT_CACHE_EXHAUSTED, "page");
  REFUSED(rt_generator_next(small, &piece), RT_CACHE_EXHAUSTED, "page");
  OK(rt_decode_session_reset(session));
  finish(small, &resumed);
  CHECK(resumed.token_count == 7 && memcmp(resumed.tokens, expected.tokens + 5, 7 * sizeof(uint32_t)) == 0);
  rt_kv_cache_factory_release(factory);
  rt_decode_session_release(session);
  rt_generator_release(small);
}

/* A running generation holds a session of its model; releases come in any order. */
static void test_release_order(void) {
  static answer a;
  rt_model_info info;
  info.struct_size = sizeof info;
  defaults();
  OK(start("abc"));
  OK(rt_model_get_info(model, &info));
  CHECK(info.session_count == 1);
  finish(generator, &a);
  OK(rt_model_get_info(model, &info));
  CHECK(info.session_count == 0);
  OK(start("abc"));
  rt_model_release(model);
  rt_tokenizer_release(tokenizer);
  finish(generator, &a);
  CHECK(a.token_count == 8);
  rt_generator_release(generator);
  rt_generator_release(NULL);
}

/* Without a tokenizer there are tokens and no text. */
static void test_without_tokenizer(void) {
  static answer a;
  rt_model* bare = NULL;
  rt_generator* g = NULL;
  const uint32_t tokens[2] = {1, 2};
  OK(rt_model_create(NULL, NULL, 3, NULL, &bare));
  OK(rt_generator_create(bare, NULL, NULL, &g));
  REFUSED(rt_generator_start(g, "a", 1, NULL), RT_INVALID_STATE, "no tokenizer");
  defaults();
  OK(rt_generator_start_tokens(g, tokens, 2, &options));
  finish(g, &a);
  CHECK(a.token_count == 8 && a.text_size == 0);
  rt_model_release(bare);
  rt_generator_release(g);
}

static void test_speculation(void) {
  static answer plain, guessed;
  const rt_logit_bias bias = {'a', 100.0f};
  rt_generation_stats stats = {sizeof stats, 0, 0, 0, 0, 0, 0, 9, 9};
  defaults();
  options.max_new_tokens = 18;
  options.logit_bias = &bias;
  options.logit_bias_count = 1;
  generate("aaa", &plain);
  OK(rt_generator_get_stats(generator, &stats));
  CHECK(plain.token_count == 18 && stats.drafted_tokens == 0 && stats.accepted_tokens == 0);
  options.speculation = RT_MAX_SPECULATION;
  generate("aaa", &guessed);
  CHECK(same(&plain, &guessed));
  OK(rt_generator_get_stats(generator, &stats));
  CHECK(stats.new_tokens == 18 && stats.drafted_tokens == 1 + 2 + 4 + 6 && stats.accepted_tokens == 13);
}

static void test_forks_and_stop(void) {
  rt_generator* fork = (rt_generator*)&options; /* must become NULL */
  rt_model_info info;
  answer first, second, other;
  info.struct_size = sizeof info;
  defaults();
  OK(rt_generator_stop(generator));
  REFUSED(rt_generator_fork(generator, 1, &fork), RT_INVALID_STATE, "no generation is running");
  CHECK(fork == NULL);
  options.temperature = 1;
  OK(start("abc"));
  REFUSED(rt_generator_fork(NULL, 1, &fork), RT_INVALID_ARGUMENT, "generator is NULL");
  REFUSED(rt_generator_fork(generator, 1, NULL), RT_INVALID_ARGUMENT, "fork is NULL");
  OK(rt_generator_fork(generator, 1, &fork));
  OK(rt_model_get_info(model, &info));
  CHECK(info.session_count == 2);
  finish(fork, &second);
  rt_generator_release(fork);
  OK(rt_generator_fork(generator, 0, &fork));
  finish(generator, &first);
  finish(fork, &other);
  CHECK(same(&first, &other) && !same(&first, &second));
  rt_generator_release(fork);

  OK(start("abc"));
  OK(rt_generator_stop(generator));
  OK(rt_model_get_info(model, &info));
  CHECK(info.session_count == 0);
  REFUSED(rt_generator_next(generator, &piece), RT_INVALID_STATE, "no generation is running");
  REFUSED(rt_generator_stop(NULL), RT_INVALID_ARGUMENT, "generator is NULL");
}

static void test_rules(void) {
  static rt_logit_bias bias[2] = {{65, 100}, {66, 100}};
  static const uint32_t stop = 65;
  uint64_t i;
  defaults();
  options.logit_bias = bias;
  options.logit_bias_count = 2;
  options.stop_tokens = &stop;
  options.stop_token_count = 1;
  options.min_new_tokens = 1;
  options.frequency_penalty = 1000;
  options.alternatives = RT_MAX_ALTERNATIVES;
  OK(start("abc"));
  bias[0].bias = bias[1].bias = -100; /* was copied */
  OK(rt_generator_next(generator, &piece));
  CHECK(piece.token == 66 && piece.alternative_count == RT_MAX_ALTERNATIVES);
  for (i = 1; i < piece.alternative_count; i++)
    CHECK(piece.alternatives[i].log_probability <= piece.alternatives[i - 1].log_probability);
  OK(rt_generator_next(generator, &piece));
  CHECK(piece.token == 65 && piece.finish == RT_FINISH_STOP);

  bias[0].token = 256;
  REFUSED(rt_generator_start(generator, "abc", 3, &options), RT_OUT_OF_RANGE, "token 256 of the logit bias");
  options.logit_bias = NULL;
  REFUSED(rt_generator_start(generator, "abc", 3, &options), RT_INVALID_ARGUMENT,
          "options.logit_bias is NULL");
  options.logit_bias_count = 0;
  options.alternatives = RT_MAX_ALTERNATIVES + 1;
  REFUSED(rt_generator_start(generator, "abc", 3, &options), RT_OUT_OF_RANGE, "65 alternatives");
  options.alternatives = 0;
  options.speculation = RT_MAX_SPECULATION + 1;
  REFUSED(rt_generator_start(generator, "abc", 3, &options), RT_OUT_OF_RANGE,
          "a speculation of 65 tokens is more than 64");
  options.speculation = 0;
  options.repetition_penalty = 0;
  REFUSED(rt_generator_start(generator, "abc", 3, &options), RT_INVALID_ARGUMENT, "repetition_penalty 0");
  options.repetition_penalty = 1;
  options.min_new_tokens = 9;
  REFUSED(rt_generator_start(generator, "abc", 3, &options), RT_INVALID_ARGUMENT, "min_new_tokens 9");
  options.min_new_tokens = 0;
  OK(start("abc"));
}

int main(int argc, char** argv) {
  rt_model_config config;
  check_begin(argc, argv);
  piece.struct_size = sizeof piece;
  OK(rt_model_config_init(&config, sizeof config));
  config.maximum_context = CONTEXT;
  config.layer_count = 2;
  config.width = 32;
  config.head_width = 8;
  config.mlp_width = 64;
  OK(rt_tokenizer_create_byte(&tokenizer));
  OK(rt_model_create(&config, tokenizer, 5, NULL, &model));
  OK(rt_generator_create(model, NULL, NULL, &generator));
  test_create();
  test_before_start();
  test_life();
  test_stops();
  test_refused_starts();
  test_refused_next();
  test_rollover();
  test_cache_exhausted();
  test_without_tokenizer();
  test_forks_and_stop();
  test_speculation();
  test_rules();
  test_release_order();
  return check_end();
}
