/* The life of decode sessions, and every documented misuse: its status and message, and that nothing has
 * changed. */
#include "c/check.h"

#define VOCABULARY 96
#define CONTEXT 24
#define WIDTH 32

static rt_model* model;
static rt_model* other_model; /* another geometry */
static rt_tokenizer* tokenizer;
static rt_kv_cache_factory* factory; /* 8 pages of 4 tokens: 32 positions for sessions of up to 24 */
static rt_decode_session* session;
static rt_decode_session* reference; /* saw no misuse; contiguous, with a cache of its own */

static float logits[4 * VOCABULARY];
static uint64_t required;

static rt_model* make_model(uint32_t width, uint32_t layers) {
  rt_model_config config;
  rt_model* made = NULL;
  OK(rt_model_config_init(&config, sizeof config));
  config.vocabulary_size = VOCABULARY;
  config.maximum_context = CONTEXT;
  config.layer_count = layers;
  config.width = width;
  config.head_width = width / 4;
  config.mlp_width = 2 * width;
  OK(rt_model_create(&config, NULL, 7, NULL, &made));
  return made;
}

static uint64_t size_of(const rt_decode_session* s) {
  uint64_t size = 999;
  OK(rt_decode_session_size(s, &size));
  return size;
}

static uint64_t free_pages(void) {
  rt_kv_cache_usage usage;
  usage.struct_size = sizeof usage;
  OK(rt_kv_cache_factory_get_usage(factory, &usage));
  CHECK(usage.block_size == 4 && usage.block_count == 8);
  return usage.free_count;
}

static uint64_t sessions_alive(const rt_model* m) {
  rt_model_info info;
  info.struct_size = sizeof info;
  OK(rt_model_get_info(m, &info));
  return info.session_count;
}

/* Whether the two give the same logits, bit for bit, for one more token; they are left as they were. */
static int same_future(const rt_decode_session* a, const rt_decode_session* b) {
  static float rows[2][VOCABULARY];
  const rt_decode_session* origins[2];
  rt_status status = RT_OK;
  int i;
  origins[0] = a;
  origins[1] = b;
  for (i = 0; i < 2; i++) {
    rt_decode_session* fork = NULL;
    if (status == RT_OK) status = rt_decode_session_fork(origins[i], &fork);
    if (status == RT_OK) status = rt_decode_session_step(fork, 5, rows[i], VOCABULARY, &required);
    rt_decode_session_release(fork);
  }
  return status == RT_OK && memcmp(rows[0], rows[1], sizeof rows[0]) == 0;
}

/* As if the refused calls before had not been made. */
static void check_intact(const char* after, uint64_t size, uint64_t pages) {
  if (size_of(session) == size && size_of(reference) == size && free_pages() == pages &&
      same_future(session, reference))
    return;
  check_fail(__FILE__, __LINE__, after);
}

static void feed(uint32_t token) {
  static float expected[VOCABULARY];
  OK(rt_decode_session_step(session, token, logits, VOCABULARY, &required));
  CHECK(required == VOCABULARY);
  OK(rt_decode_session_step(reference, token, expected, VOCABULARY, &required));
  CHECK(memcmp(logits, expected, sizeof expected) == 0);
}

static void test_create(void) {
  rt_decode_session_options options;
  rt_decode_session* made = (rt_decode_session*)&options; /* must become NULL */
  uint64_t number = 0;
  int32_t kind = -1;
  OK(rt_decode_session_options_init(&options, sizeof options));
  CHECK(options.kind == RT_KV_CACHE_PAGED && options.block_size == 16 && options.maximum_context == 0);

  REFUSED(rt_model_decode_session_create(NULL, NULL, &made), RT_INVALID_ARGUMENT, "model is NULL");
  CHECK(made == NULL);
  REFUSED(rt_model_decode_session_create((const rt_model*)tokenizer, NULL, &made), RT_INVALID_ARGUMENT,
          "model is not a live model handle");
  REFUSED(rt_model_decode_session_create(model, NULL, NULL), RT_INVALID_ARGUMENT, "session is NULL");
  options.kind = 2;
  REFUSED(rt_model_decode_session_create(model, &options, &made), RT_INVALID_ARGUMENT, "options.kind is 2");
  options.kind = -1;
  REFUSED(rt_model_decode_session_create(model, &options, &made), RT_INVALID_ARGUMENT, "options.kind is -1");
  options.kind = RT_KV_CACHE_PAGED;
  options.element_type = 3;
  REFUSED(rt_model_decode_session_create(model, &options, &made), RT_INVALID_ARGUMENT,
          "options.element_type is 3, not one of 0 to 2");
  options.element_type = RT_KV_ELEMENT_F32;
  options.block_size = 0;
  REFUSED(rt_model_decode_session_create(model, &options, &made), RT_INVALID_ARGUMENT, "block");
  options.block_size = UINT64_MAX;
  CHECK(rt_model_decode_session_create(model, &options, &made) != RT_OK && made == NULL);
  options.block_size = 16;
  options.maximum_context = CONTEXT + 1;
  REFUSED(rt_model_decode_session_create(model, &options, &made), RT_OUT_OF_RANGE, "25");
  options.maximum_context = 0;
  options.cancel = (const rt_cancel*)model;
  REFUSED(rt_model_decode_session_create(model, &options, &made), RT_INVALID_ARGUMENT,
          "options.cancel is not a live cancel handle");
  options.cancel = NULL;
  options.factory = (rt_kv_cache_factory*)model;
  REFUSED(rt_model_decode_session_create(model, &options, &made), RT_INVALID_ARGUMENT,
          "options.factory is not a live cache factory handle");
  options.factory = factory;
  REFUSED(rt_model_decode_session_create(other_model, &options, &made), RT_INVALID_ARGUMENT, "width 16");
  CHECK(strstr(rt_last_error(), "width 8") != NULL); /* both geometries are named */
  options.kind = RT_KV_CACHE_CONTIGUOUS;
  REFUSED(rt_model_decode_session_create(model, &options, &made), RT_INVALID_ARGUMENT, "kind");
  options.kind = RT_KV_CACHE_PAGED;
  options.block_size = 5;
  REFUSED(rt_model_decode_session_create(model, &options, &made), RT_INVALID_ARGUMENT, "block size of 5");
  CHECK(made == NULL && sessions_alive(model) == 0 && sessions_alive(other_model) == 0);

  options.block_size = 4;
  OK(rt_model_decode_session_create(model, &options, &session));
  OK(rt_decode_session_options_init(&options, sizeof options));
  options.kind = RT_KV_CACHE_CONTIGUOUS;
  OK(rt_model_decode_session_create(model, &options, &reference));
  CHECK(sessions_alive(model) == 2 && size_of(session) == 0);
  OK(rt_decode_session_capacity(session, &number));
  CHECK(number == CONTEXT);
  OK(rt_decode_session_cache_kind(session, &kind));
  CHECK(kind == RT_KV_CACHE_PAGED);
  OK(rt_decode_session_block_size(session, &number));
  CHECK(number == 4);
  OK(rt_decode_session_cache_kind(reference, &kind));
  CHECK(kind == RT_KV_CACHE_CONTIGUOUS);
  OK(rt_decode_session_block_size(reference, &number));
  CHECK(number == CONTEXT);
}

static void test_factory(void) {
  rt_kv_cache_factory_options options;
  rt_kv_cache_factory* made = NULL;
  OK(rt_kv_cache_factory_options_init(&options, sizeof options));
  REFUSED(rt_kv_cache_factory_create(NULL, NULL, &made), RT_INVALID_ARGUMENT, "model is NULL");
  REFUSED(rt_kv_cache_factory_create(model, NULL, NULL), RT_INVALID_ARGUMENT, "factory is NULL");
  options.kind = 9;
  REFUSED(rt_kv_cache_factory_create(model, &options, &made), RT_INVALID_ARGUMENT, "options.kind is 9");
  options.kind = RT_KV_CACHE_PAGED;
  options.element_type = -1;
  REFUSED(rt_kv_cache_factory_create(model, &options, &made), RT_INVALID_ARGUMENT,
          "options.element_type is -1, not one of 0 to 2");
  options.element_type = RT_KV_ELEMENT_F32;
  options.block_size = 0;
  REFUSED(rt_kv_cache_factory_create(model, &options, &made), RT_INVALID_ARGUMENT, "block");
  options.block_size = 4;
  options.block_count = UINT64_MAX;
  CHECK(rt_kv_cache_factory_create(model, &options, &made) != RT_OK && made == NULL);
  options.block_count = 0;
  options.maximum_context = CONTEXT + 1;
  REFUSED(rt_kv_cache_factory_create(model, &options, &made), RT_OUT_OF_RANGE, "25");
  options.maximum_context = 0;
  options.kind = RT_KV_CACHE_CONTIGUOUS;
  REFUSED(rt_kv_cache_factory_create(model, &options, &made), RT_INVALID_ARGUMENT, "24");
  options.block_size = 0;
  options.block_count = 2;
  REFUSED(rt_kv_cache_factory_create(model, &options, &made), RT_INVALID_ARGUMENT, "block count");
  CHECK(made == NULL);
  REFUSED(rt_kv_cache_factory_get_usage(NULL, NULL), RT_INVALID_ARGUMENT, "factory is NULL");
  OK(rt_kv_cache_factory_options_init(&options, sizeof options));
  options.block_size = 4;
  options.block_count = 8;
  OK(rt_kv_cache_factory_create(model, &options, &factory));
  REFUSED(rt_kv_cache_factory_get_usage(factory, NULL), RT_INVALID_ARGUMENT, "usage is NULL");
  CHECK(free_pages() == 8);
}

static void test_step(void) {
  static const uint32_t bad = VOCABULARY;
  uint64_t size, pages;
  int i;
  for (i = 0; i < 5; i++) feed((uint32_t)(10 + i));
  size = size_of(session);
  pages = free_pages();
  CHECK(size == 5 && pages == 6);

  REFUSED(rt_decode_session_step(NULL, 1, logits, VOCABULARY, &required), RT_INVALID_ARGUMENT,
          "session is NULL");
  REFUSED(rt_decode_session_step((rt_decode_session*)model, 1, logits, VOCABULARY, &required),
          RT_INVALID_ARGUMENT, "session is not a live decode session handle");
  REFUSED(rt_decode_session_step(session, bad, logits, VOCABULARY, &required), RT_OUT_OF_RANGE,
          "token 96 is not below the vocabulary size 96");
  REFUSED(rt_decode_session_step(session, bad, NULL, 0, &required), RT_OUT_OF_RANGE,
          "token 96"); /* arguments before capacity */
  REFUSED(rt_decode_session_step(session, UINT32_MAX, logits, VOCABULARY, &required), RT_OUT_OF_RANGE,
          "token 4294967295");
  REFUSED(rt_decode_session_step(session, 1, NULL, VOCABULARY, &required), RT_INVALID_ARGUMENT,
          "logits is NULL but its capacity is 96");
  REFUSED(rt_decode_session_step(session, 1, logits, VOCABULARY, NULL), RT_INVALID_ARGUMENT,
          "required is NULL");
  required = 0;
  REFUSED(rt_decode_session_step(session, 1, logits, VOCABULARY - 1, &required), RT_BUFFER_TOO_SMALL,
          "a capacity of 95 is below the 96 required");
  CHECK(required == VOCABULARY);
  required = 0;
  REFUSED(rt_decode_session_step(session, 1, NULL, 0, &required), RT_BUFFER_TOO_SMALL,
          "a capacity of 0"); /* no size query */
  CHECK(required == VOCABULARY);
  check_intact("step", size, pages);
  feed(20);
}

static void test_prefill(void) {
  static uint32_t tokens[CONTEXT + 1] = {1, 2, 3};
  const uint64_t size = size_of(session), pages = free_pages();
  REFUSED(rt_decode_session_prefill(NULL, tokens, 3, logits, VOCABULARY, &required), RT_INVALID_ARGUMENT,
          "session is NULL");
  REFUSED(rt_decode_session_prefill(session, NULL, 3, logits, VOCABULARY, &required), RT_INVALID_ARGUMENT,
          "tokens is NULL");
  REFUSED(rt_decode_session_prefill(session, tokens, 0, logits, VOCABULARY, &required), RT_INVALID_ARGUMENT,
          "token");
  REFUSED(rt_decode_session_prefill(session, tokens, UINT64_MAX, logits, VOCABULARY, &required), RT_OVERFLOW,
          "tokens");
  REFUSED(rt_decode_session_prefill(session, tokens, 3, logits, 95, &required), RT_BUFFER_TOO_SMALL, "95");
  REFUSED(rt_decode_session_prefill(session, tokens, CONTEXT + 1, logits, VOCABULARY, &required),
          RT_CONTEXT_FULL, "24");
  tokens[2] = VOCABULARY;
  REFUSED(rt_decode_session_prefill(session, tokens, 3, logits, VOCABULARY, &required), RT_OUT_OF_RANGE,
          "token 96");
  tokens[2] = 3;
  check_intact("prefill", size, pages);
  OK(rt_decode_session_prefill(session, tokens, 3, logits, VOCABULARY, &required));
  OK(rt_decode_session_prefill(reference, tokens, 3, logits + VOCABULARY, VOCABULARY, &required));
  CHECK(memcmp(logits, logits + VOCABULARY, VOCABULARY * sizeof *logits) == 0);
  check_intact("after prefill", size + 3, pages - 1);
}

static void test_cancel(void) {
  rt_decode_session_options options;
  rt_decode_session *s = NULL, *fork = NULL;
  rt_cancel* cancel = NULL;
  uint32_t tokens[2] = {1, 2};
  const uint64_t size = size_of(session), pages = free_pages();
  REFUSED(rt_cancel_create(NULL), RT_INVALID_ARGUMENT, "cancel is NULL");
  OK(rt_cancel_create(&cancel));
  OK(rt_decode_session_options_init(&options, sizeof options));
  options.factory = factory;
  options.cancel = cancel;
  OK(rt_model_decode_session_create(model, &options, &s));
  OK(rt_decode_session_step(s, 9, logits, VOCABULARY, &required));
  rt_cancel_set(cancel);
  rt_cancel_set(cancel);
  REFUSED(rt_decode_session_step(s, 1, logits, VOCABULARY, &required), RT_CANCELLED, "cancelled");
  REFUSED(rt_decode_session_prefill(s, tokens, 2, logits, VOCABULARY, &required), RT_CANCELLED, "cancelled");
  REFUSED(rt_decode_session_step_many(&s, tokens, 1, logits, VOCABULARY, &required), RT_CANCELLED,
          "cancelled");
  CHECK(size_of(s) == 1);
  OK(rt_decode_session_fork(s, &fork)); /* has the flag too */
  REFUSED(rt_decode_session_step(fork, 1, logits, VOCABULARY, &required), RT_CANCELLED, "cancelled");
  rt_decode_session_release(fork);
  rt_cancel_reset(cancel);
  OK(rt_decode_session_step(s, 1, logits, VOCABULARY, &required));
  CHECK(size_of(s) == 2);
  rt_decode_session_release(s);
  rt_cancel_set(NULL);
  rt_cancel_reset(NULL);
  rt_cancel_release(cancel);
  check_intact("cancel", size, pages);
}

static void test_step_many(void) {
  rt_decode_session* batch[3];
  rt_decode_session* foreign = NULL;
  const uint32_t tokens[3] = {1, 2, 3}, bad[3] = {1, VOCABULARY, 3};
  const uint64_t size = size_of(session), pages = free_pages();
  static float alone[VOCABULARY];
  OK(rt_model_decode_session_create(other_model, NULL, &foreign));
  batch[0] = session;
  batch[1] = reference;
  batch[2] = session;
  REFUSED(rt_decode_session_step_many(NULL, tokens, 2, logits, 2 * VOCABULARY, &required),
          RT_INVALID_ARGUMENT, "sessions is NULL");
  REFUSED(rt_decode_session_step_many(batch, NULL, 2, logits, 2 * VOCABULARY, &required), RT_INVALID_ARGUMENT,
          "tokens is NULL");
  REFUSED(rt_decode_session_step_many(batch, tokens, 0, logits, 2 * VOCABULARY, &required),
          RT_INVALID_ARGUMENT, "count is 0");
  REFUSED(rt_decode_session_step_many(batch, tokens, 2, logits, 2 * VOCABULARY, NULL), RT_INVALID_ARGUMENT,
          "required is NULL");
  REFUSED(rt_decode_session_step_many(batch, tokens, 3, logits, 3 * VOCABULARY, &required),
          RT_INVALID_ARGUMENT, "session 2");
  REFUSED(rt_decode_session_step_many(batch, bad, 2, logits, 2 * VOCABULARY, &required), RT_OUT_OF_RANGE,
          "token 96");
  REFUSED(rt_decode_session_step_many(batch, tokens, 2, logits, 2 * VOCABULARY - 1, &required),
          RT_BUFFER_TOO_SMALL, "a capacity of 191 is below the 192 required");
  CHECK(required == 2 * VOCABULARY);
  batch[1] = NULL;
  REFUSED(rt_decode_session_step_many(batch, tokens, 2, logits, 2 * VOCABULARY, &required),
          RT_INVALID_ARGUMENT, "sessions[1] is NULL");
  batch[1] = (rt_decode_session*)factory;
  REFUSED(rt_decode_session_step_many(batch, tokens, 2, logits, 2 * VOCABULARY, &required),
          RT_INVALID_ARGUMENT, "sessions[1] is not a live decode session handle");
  batch[1] = foreign;
  REFUSED(rt_decode_session_step_many(batch, tokens, 2, logits, 2 * VOCABULARY, &required),
          RT_INVALID_ARGUMENT, "session 1");
  rt_decode_session_release(foreign);
  check_intact("step_many", size, pages);

  /* A batch is its sessions one by one. */
  OK(rt_decode_session_fork(session, &batch[0]));
  OK(rt_decode_session_fork(reference, &batch[1]));
  OK(rt_decode_session_step_many(batch, tokens, 2, logits, 2 * VOCABULARY, &required));
  CHECK(required == 2 * VOCABULARY);
  rt_decode_session_release(batch[0]);
  OK(rt_decode_session_fork(session, &batch[0]));
  OK(rt_decode_session_step(batch[0], tokens[0], alone, VOCABULARY, &required));
  CHECK(memcmp(alone, logits, sizeof alone) == 0);
  rt_decode_session_release(batch[0]);
  rt_decode_session_release(batch[1]);
  check_intact("batch of forks", size, pages);
}

static void test_truncate_and_queries(void) {
  const uint64_t size = size_of(session);
  uint64_t pages = free_pages();
  rt_decode_session* fork = NULL;
  REFUSED(rt_decode_session_truncate(NULL, 0), RT_INVALID_ARGUMENT, "session is NULL");
  REFUSED(rt_decode_session_truncate(session, size + 1), RT_OUT_OF_RANGE, "10");
  REFUSED(rt_decode_session_truncate(session, UINT64_MAX), RT_OUT_OF_RANGE, "18446744073709551615");
  REFUSED(rt_decode_session_reset(NULL), RT_INVALID_ARGUMENT, "session is NULL");
  REFUSED(rt_decode_session_fork(NULL, &fork), RT_INVALID_ARGUMENT, "session is NULL");
  REFUSED(rt_decode_session_fork(session, NULL), RT_INVALID_ARGUMENT, "fork is NULL");
  REFUSED(rt_decode_session_size(session, NULL), RT_INVALID_ARGUMENT, "size is NULL");
  REFUSED(rt_decode_session_size(NULL, NULL), RT_INVALID_ARGUMENT, "session is NULL");
  REFUSED(rt_decode_session_capacity(session, NULL), RT_INVALID_ARGUMENT, "capacity is NULL");
  REFUSED(rt_decode_session_cache_kind(session, NULL), RT_INVALID_ARGUMENT, "kind is NULL");
  REFUSED(rt_decode_session_block_size(session, NULL), RT_INVALID_ARGUMENT, "block_size is NULL");
  check_intact("truncate and queries", size, pages);

  OK(rt_decode_session_truncate(session, size));
  check_intact("truncate to the same size", size, pages);
  OK(rt_decode_session_truncate(session, 4));
  OK(rt_decode_session_truncate(reference, 4));
  pages = free_pages();
  CHECK(pages == 7);
  check_intact("truncate", 4, pages);
}

/* A fork goes its own way. */
static void test_fork(void) {
  rt_decode_session* fork = NULL;
  const uint64_t size = size_of(session), pages = free_pages();
  OK(rt_decode_session_fork(session, &fork));
  CHECK(free_pages() == pages && size_of(fork) == size && same_future(session, fork));
  OK(rt_decode_session_step(fork, 3, logits, VOCABULARY, &required));
  CHECK(size_of(fork) == size + 1);
  check_intact("fork", size, free_pages());
  rt_decode_session_release(fork);
  check_intact("fork released", size, pages);
}

static void test_context_full(void) {
  uint64_t pages;
  const uint32_t tokens[2] = {1, 2};
  while (size_of(session) < CONTEXT - 1) feed((uint32_t)size_of(session));
  pages = free_pages();
  REFUSED(rt_decode_session_prefill(session, tokens, 2, logits, VOCABULARY, &required), RT_CONTEXT_FULL,
          "24");
  check_intact("one place left", CONTEXT - 1, pages);
  feed(1);
  CHECK(free_pages() == 2);
  REFUSED(rt_decode_session_step(session, 1, logits, VOCABULARY, &required), RT_CONTEXT_FULL, "24");
  REFUSED(rt_decode_session_step(session, 96, logits, VOCABULARY, &required), RT_OUT_OF_RANGE,
          "token 96"); /* checked first */
  REFUSED(rt_decode_session_step_many(&session, tokens, 1, logits, VOCABULARY, &required), RT_CONTEXT_FULL,
          "24");
  CHECK(size_of(session) == CONTEXT && free_pages() == 2);
}

/* session holds 6 of the 8 pages, another one takes the last 2. */
static void test_cache_exhausted(void) {
  rt_decode_session_options options;
  rt_decode_session *second = NULL, *alone = NULL, *batch[2];
  uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  static float expected[VOCABULARY];
  OK(rt_decode_session_options_init(&options, sizeof options));
  options.factory = factory;
  OK(rt_model_decode_session_create(model, &options, &second));
  OK(rt_decode_session_prefill(second, tokens, 7, logits, VOCABULARY, &required));
  CHECK(free_pages() == 0);
  OK(rt_decode_session_step(second, 8, logits, VOCABULARY, &required));
  REFUSED(rt_decode_session_step(second, 9, logits, VOCABULARY, &required), RT_CACHE_EXHAUSTED, "page");
  REFUSED(rt_decode_session_prefill(second, tokens, 8, logits, VOCABULARY, &required), RT_CACHE_EXHAUSTED,
          "page");
  CHECK(size_of(second) == 8 && free_pages() == 0);

  /* A batch in which one session finds no page changes none. */
  OK(rt_decode_session_truncate(session, CONTEXT - 1));
  OK(rt_decode_session_truncate(reference, CONTEXT - 1));
  batch[0] = session;
  batch[1] = second;
  REFUSED(rt_decode_session_step_many(batch, tokens, 2, logits, 2 * VOCABULARY, &required),
          RT_CACHE_EXHAUSTED, "page");
  CHECK(size_of(session) == CONTEXT - 1 && size_of(second) == 8 && free_pages() == 0);

  /* Once there are pages again it goes on as if nothing had been refused. */
  OK(rt_decode_session_reset(session));
  OK(rt_decode_session_reset(reference));
  CHECK(free_pages() == 6);
  check_intact("reset", 0, 6);
  OK(rt_model_decode_session_create(model, NULL, &alone));
  OK(rt_decode_session_prefill(alone, tokens, 8, expected, VOCABULARY, &required));
  OK(rt_decode_session_step(alone, 9, expected, VOCABULARY, &required));
  OK(rt_decode_session_step(second, 9, logits, VOCABULARY, &required));
  CHECK(memcmp(logits, expected, sizeof expected) == 0);
  rt_decode_session_release(alone);
  rt_decode_session_release(second);
  check_intact("pages returned", 0, 8);
}

/* Children keep alive what they need. A release leaves the last error alone. */
static void test_release_order(void) {
  char error[256];
  REFUSED(rt_decode_session_size(NULL, NULL), RT_INVALID_ARGUMENT, "session is NULL");
  snprintf(error, sizeof error, "%s", rt_last_error());
  rt_model_release(model);
  rt_kv_cache_factory_release(factory);
  rt_model_release(NULL);
  rt_kv_cache_factory_release(NULL);
  rt_decode_session_release(NULL);
  rt_cancel_release(NULL);
  CHECK(strcmp(error, rt_last_error()) == 0);
  feed(3);
  feed(4);
  CHECK(same_future(session, reference));
  rt_decode_session_release(reference);
  OK(rt_decode_session_step(session, 5, logits, VOCABULARY, &required));
  rt_decode_session_release(session);
  rt_model_release(other_model);
  rt_tokenizer_release(tokenizer);
}

static void test_hidden_states(void) {
  static const uint32_t tokens[3] = {1, 2, 3}, bad[2] = {1, VOCABULARY};
  static float whole[3 * WIDTH], last[WIDTH];
  rt_decode_session* other = NULL;
  const uint64_t size = size_of(session);
  OK(rt_decode_session_fork(session, &other));
  OK(rt_decode_session_hidden_states(session, tokens, 3, 0, whole, 3 * WIDTH, &required));
  CHECK(required == 3 * WIDTH && size_of(session) == size + 3);
  OK(rt_decode_session_hidden_states(other, tokens, 3, 2, last, WIDTH, &required));
  CHECK(required == WIDTH && memcmp(last, whole + 2 * WIDTH, sizeof last) == 0);
  rt_decode_session_release(other);
  OK(rt_decode_session_truncate(session, size));

  REFUSED(rt_decode_session_hidden_states(NULL, tokens, 3, 0, whole, 3 * WIDTH, &required),
          RT_INVALID_ARGUMENT, "session is NULL");
  REFUSED(rt_decode_session_hidden_states(session, NULL, 3, 0, whole, 3 * WIDTH, &required),
          RT_INVALID_ARGUMENT, "tokens is NULL");
  REFUSED(rt_decode_session_hidden_states(session, bad, 2, 0, whole, 3 * WIDTH, &required), RT_OUT_OF_RANGE,
          "token 96 is not below the vocabulary size 96");
  REFUSED(rt_decode_session_hidden_states(session, tokens, 3, 3, whole, 3 * WIDTH, &required),
          RT_OUT_OF_RANGE, "first_row 3 is not below token_count 3");
  REFUSED(rt_decode_session_hidden_states(session, tokens, 0, 0, whole, 3 * WIDTH, &required),
          RT_OUT_OF_RANGE, "first_row 0 is not below token_count 0");
  REFUSED(rt_decode_session_hidden_states(session, tokens, 3, 0, NULL, WIDTH, &required), RT_INVALID_ARGUMENT,
          "states is NULL");
  REFUSED(rt_decode_session_hidden_states(session, tokens, 3, 0, whole, 3 * WIDTH, NULL), RT_INVALID_ARGUMENT,
          "required is NULL");
  required = 0;
  REFUSED(rt_decode_session_hidden_states(session, tokens, 3, 1, whole, 2 * WIDTH - 1, &required),
          RT_BUFFER_TOO_SMALL, "states: a capacity of");
  CHECK(required == 2 * WIDTH && size_of(session) == size);
}

static void test_usage(void) {
  rt_decode_session* other = NULL;
  rt_decode_session_usage usage;
  rt_kv_cache_usage pool;
  usage.struct_size = sizeof usage;
  pool.struct_size = sizeof pool;
  OK(rt_kv_cache_factory_get_usage(factory, &pool));
  OK(rt_decode_session_get_usage(session, &usage));
  CHECK(usage.block_count == 8 - pool.free_count && usage.shared_count == 0 &&
        usage.bytes == usage.block_count * pool.block_bytes && pool.block_bytes > 0);
  OK(rt_decode_session_fork(session, &other));
  OK(rt_decode_session_get_usage(other, &usage));
  CHECK(usage.shared_count == usage.block_count);
  rt_decode_session_release(other);
  REFUSED(rt_decode_session_get_usage(NULL, &usage), RT_INVALID_ARGUMENT, "session is NULL");
  REFUSED(rt_decode_session_get_usage(session, NULL), RT_INVALID_ARGUMENT, "usage is NULL");
}

static void test_save(void) {
  static const char path[] = "saved.session", nowhere[] = "no/folder/x";
  static float expected[VOCABULARY];
  rt_decode_session* loaded = NULL;
  rt_decode_session_options options;
  const uint64_t size = size_of(session);
  OK(rt_decode_session_save(session, path, sizeof path - 1));
  OK(rt_model_decode_session_load(model, path, sizeof path - 1, NULL, &loaded));
  CHECK(size_of(loaded) == size);
  OK(rt_decode_session_step(session, 7, expected, VOCABULARY, &required));
  OK(rt_decode_session_step(loaded, 7, logits, VOCABULARY, &required));
  CHECK(memcmp(logits, expected, sizeof expected) == 0);
  rt_decode_session_release(loaded);
  OK(rt_decode_session_truncate(session, size));

  REFUSED(rt_decode_session_save(NULL, path, sizeof path - 1), RT_INVALID_ARGUMENT, "session is NULL");
  REFUSED(rt_decode_session_save(session, NULL, 3), RT_INVALID_ARGUMENT, "path is NULL");
  REFUSED(rt_decode_session_save(session, nowhere, sizeof nowhere - 1), RT_INPUT_OUTPUT, "no/folder");
  REFUSED(rt_model_decode_session_load(NULL, path, sizeof path - 1, NULL, &loaded), RT_INVALID_ARGUMENT,
          "model is NULL");
  CHECK(loaded == NULL);
  REFUSED(rt_model_decode_session_load(model, path, sizeof path - 1, NULL, NULL), RT_INVALID_ARGUMENT,
          "session is NULL");
  REFUSED(rt_model_decode_session_load(model, nowhere, sizeof nowhere - 1, NULL, &loaded), RT_INPUT_OUTPUT,
          "no/folder");
  REFUSED(rt_model_decode_session_load(other_model, path, sizeof path - 1, NULL, &loaded),
          RT_INVALID_ARGUMENT, "saved from another model");
  OK(rt_decode_session_options_init(&options, sizeof options));
  options.element_type = RT_KV_ELEMENT_F16;
  REFUSED(rt_model_decode_session_load(model, path, sizeof path - 1, &options, &loaded), RT_INVALID_ARGUMENT,
          "keys and values are f32, the cache's f16");
  remove(path);
}

int main(int argc, char** argv) {
  check_begin(argc, argv);
  OK(rt_tokenizer_create_byte(&tokenizer));
  model = make_model(32, 2);
  other_model = make_model(64, 2);
  test_factory();
  test_create();
  test_step();
  test_prefill();
  test_hidden_states();
  test_usage();
  test_save();
  test_cancel();
  test_step_many();
  test_truncate_and_queries();
  test_fork();
  test_context_full();
  test_cache_exhausted();
  test_release_order();
  return check_end();
}
