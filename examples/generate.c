/* Continues a prompt with a model from a file, piece by piece.
 *
 *   cc -std=c99 examples/generate.c $(pkg-config --cflags --libs riftco) -o generate
 *   ./generate model.gguf "The capital of France is" 8
 *
 * MODEL is a .gguf file, a .rift file or a Hugging Face folder. Decoding is greedy. Ctrl-C ends it cleanly.
 */
#include <riftco/riftco.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static rt_cancel* cancel;

/* A cancel flag may be set from a signal handler. */
static void on_interrupt(int signal_number) {
  (void)signal_number;
  rt_cancel_set(cancel);
}

/* The last error is the calling thread's, and valid until its next call. */
static int failed(const char* what, rt_status status) {
  fprintf(stderr, "generate: %s: %s: %s\n", what, rt_status_name(status), rt_last_error());
  return 1;
}

static int generate(rt_generator* generator, const char* prompt, uint64_t max_new_tokens) {
  rt_generation_options options;
  rt_generation_stats stats = {sizeof stats, 0, 0, 0, 0, 0, 0, 0, 0};
  rt_generation_piece piece;
  rt_status status = rt_generation_options_init(&options, sizeof options);
  if (status != RT_OK) return failed("options", status);
  options.max_new_tokens = max_new_tokens;
  options.cancel = cancel;

  status = rt_generator_start(generator, prompt, strlen(prompt), &options);
  if (status != RT_OK) return failed(prompt, status);
  memset(&piece, 0, sizeof piece);
  piece.struct_size = sizeof piece;
  do {
    status = rt_generator_next(generator, &piece);
    if (status != RT_OK) return failed("next token", status);
    fwrite(piece.bytes, 1, (size_t)piece.size, stdout);
    fflush(stdout);
  } while (piece.finish == RT_FINISH_NONE);
  putchar('\n');

  status = rt_generator_get_stats(generator, &stats);
  if (status != RT_OK) return failed("statistics", status);
  fprintf(stderr, "%llu prompt tokens in %.3f s, %llu new tokens in %.3f s\n",
          (unsigned long long)stats.prompt_tokens, stats.prefill_seconds,
          (unsigned long long)stats.new_tokens, stats.decode_seconds);
  return 0;
}

int main(int argc, char** argv) {
  rt_model* model = NULL;
  rt_generator* generator = NULL;
  rt_status status;
  char* end = NULL;
  const unsigned long long max_new_tokens = argc == 4 ? strtoull(argv[3], &end, 10) : 64;
  int result = 1;
  if (argc < 3 || argc > 4 || (end != NULL && (*end != '\0' || max_new_tokens == 0))) {
    fprintf(stderr, "usage: generate MODEL PROMPT [MAX_NEW_TOKENS]\n");
    return 2;
  }
  status = rt_cancel_create(&cancel);
  if (status != RT_OK) return failed("cancel flag", status);
  signal(SIGINT, on_interrupt);

  status = rt_model_load(argv[1], strlen(argv[1]), NULL, &model);
  if (status == RT_OK)
    status = rt_generator_create(model, NULL, NULL, &generator); /* its own tokenizer and cache */
  if (status != RT_OK) {
    failed(argv[1], status);
  } else {
    result = generate(generator, argv[2], max_new_tokens);
  }

  /* In any order; NULL does nothing. */
  rt_generator_release(generator);
  rt_model_release(model);
  signal(SIGINT, SIG_DFL);
  rt_cancel_release(cancel);
  return result;
}
