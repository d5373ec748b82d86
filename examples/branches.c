/* Two continuations of one prompt, decoded as one batch: prefill, fork, step_many, final hidden states.
 *
 *   cc -std=c99 examples/branches.c $(pkg-config --cflags --libs riftco) -lm -o branches
 *   ./branches model.gguf "The capital of France is" 8
 *
 * The prompt is computed once; the second branch begins with the second most likely token. Decoding is greedy.
 */
#include <math.h>
#include <riftco/riftco.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TOKENS 4096

typedef struct {
  rt_decode_session* session;
  uint32_t tokens[MOST_TOKENS]; /* after the prompt */
} branch;

static rt_model* model;
static rt_tokenizer* tokenizer;
static rt_model_config config;
static branch branches[2];

static int failed(const char* what, rt_status status) {
  fprintf(stderr, "branches: %s: %s: %s\n", what, rt_status_name(status), rt_last_error());
  return 1;
}

/* The most likely token but for `other`. */
static uint32_t best(const float* logits, uint32_t other) {
  uint32_t i, found = other == 0;
  for (i = 0; i < config.vocabulary_size; i++)
    if (i != other && logits[i] > logits[found]) found = i;
  return found;
}

/* Pulls a branch's final hidden state by decoding its last token again. */
static rt_status hidden_state(branch* b, uint64_t count, float* state) {
  uint64_t size, required;
  rt_status status = rt_decode_session_size(b->session, &size);
  if (status == RT_OK) status = rt_decode_session_truncate(b->session, size - 1);
  if (status == RT_OK)
    status = rt_decode_session_hidden_states(b->session, &b->tokens[count - 1], 1, 0, state, config.width,
                                             &required);
  return status;
}

static rt_status print_text(const char* name, const uint32_t* tokens, uint64_t count) {
  uint64_t size = 0;
  char* text = NULL;
  rt_status status = rt_tokenizer_decode(tokenizer, tokens, count, 1, NULL, 0, &size);
  if (status == RT_OK) text = malloc((size_t)size + 1);
  if (text) status = rt_tokenizer_decode(tokenizer, tokens, count, 1, text, size, &size);
  if (text && status == RT_OK) {
    printf("%s:", name);
    fwrite(text, 1, (size_t)size, stdout);
    putchar('\n');
  }
  free(text);
  return status;
}

/* rows: 2 x vocabulary size; states: 2 x width. */
static rt_status run(const char* prompt, uint64_t count, float* rows, float* states) {
  static uint32_t ids[MOST_TOKENS];
  rt_decode_session* sessions[2];
  rt_encode_options encode;
  uint64_t size = 0, required, i;
  uint32_t next[2];
  double dot = 0, norms[2] = {0, 0};
  rt_status status = rt_encode_options_init(&encode, sizeof encode);
  if (status == RT_OK) {
    encode.add_special = 1;
    status = rt_tokenizer_encode(tokenizer, prompt, strlen(prompt), &encode, ids, MOST_TOKENS, &size);
  }
  if (status == RT_OK) status = rt_model_decode_session_create(model, NULL, &branches[0].session);
  if (status == RT_OK)
    status =
        rt_decode_session_prefill(branches[0].session, ids, size, rows, config.vocabulary_size, &required);
  if (status == RT_OK) status = rt_decode_session_fork(branches[0].session, &branches[1].session);
  if (status != RT_OK) return status;

  sessions[0] = branches[0].session;
  sessions[1] = branches[1].session;
  next[0] = best(rows, UINT32_MAX);
  next[1] = best(rows, next[0]);
  for (i = 0; i < count; i++) {
    branches[0].tokens[i] = next[0];
    branches[1].tokens[i] = next[1];
    status =
        rt_decode_session_step_many(sessions, next, 2, rows, 2 * (uint64_t)config.vocabulary_size, &required);
    if (status != RT_OK) return status;
    next[0] = best(rows, UINT32_MAX);
    next[1] = best(rows + config.vocabulary_size, UINT32_MAX);
  }

  for (i = 0; i < 2; i++) {
    status = hidden_state(&branches[i], count, states + i * config.width);
    if (status != RT_OK) return status;
  }
  for (i = 0; i < config.width; i++) {
    dot += (double)states[i] * (double)states[config.width + i];
    norms[0] += (double)states[i] * (double)states[i];
    norms[1] += (double)states[config.width + i] * (double)states[config.width + i];
  }
  status = print_text("first", branches[0].tokens, count);
  if (status == RT_OK) status = print_text("second", branches[1].tokens, count);
  if (status == RT_OK) printf("cosine of their final hidden states: %.4f\n", dot / sqrt(norms[0] * norms[1]));
  return status;
}

int main(int argc, char** argv) {
  char* end = NULL;
  const unsigned long long count = argc == 4 ? strtoull(argv[3], &end, 10) : 16;
  float *rows = NULL, *states = NULL;
  rt_status status;
  if (argc < 3 || argc > 4 || (end != NULL && *end != '\0') || count == 0 || count > MOST_TOKENS) {
    fprintf(stderr, "usage: branches MODEL PROMPT [NEW_TOKENS]\n");
    return 2;
  }
  config.struct_size = sizeof config;
  status = rt_model_load(argv[1], strlen(argv[1]), NULL, &model);
  if (status == RT_OK) status = rt_model_get_config(model, &config);
  if (status == RT_OK) status = rt_model_tokenizer(model, &tokenizer);
  if (status == RT_OK) {
    rows = malloc(2 * sizeof *rows * config.vocabulary_size);
    states = malloc(2 * sizeof *states * config.width);
    if (rows && states) status = run(argv[2], count, rows, states);
  }
  if (status != RT_OK) failed(argv[1], status);
  free(rows);
  free(states);
  rt_decode_session_release(branches[0].session);
  rt_decode_session_release(branches[1].session);
  rt_tokenizer_release(tokenizer);
  rt_model_release(model);
  return status == RT_OK ? 0 : 1;
}
