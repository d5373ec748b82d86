/* A model learns a text by heart through low-rank adapters; its own weights stay.
 *
 *   cc -std=c99 examples/adapters.c $(pkg-config --cflags --libs riftco) -o adapters
 *   ./adapters model.gguf "The keeper of the lamp was Ada." 20
 *
 * Each step is one update of AdamW; the last line is what the inference kernels say about the text afterwards.
 */
#include <riftco/riftco.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TOKENS 256

static rt_model* model;
static rt_trainer* trainer;

/* The text's tokens, each of them but the last to be followed by the next one. */
static rt_status read_batch(const char* text, rt_training_batch* batch) {
  static uint32_t ids[MOST_TOKENS];
  rt_tokenizer* tokenizer = NULL;
  uint64_t count = 0;
  rt_status status = rt_model_tokenizer(model, &tokenizer);
  if (status == RT_OK)
    status = rt_tokenizer_encode(tokenizer, text, strlen(text), NULL, ids, MOST_TOKENS, &count);
  rt_tokenizer_release(tokenizer);
  memset(batch, 0, sizeof *batch);
  batch->struct_size = sizeof *batch;
  batch->tokens = ids;
  batch->targets = ids + 1;
  batch->sequences = 1;
  batch->length = count > 0 ? count - 1 : 0;
  return status;
}

static rt_status train(const char* text, unsigned long long steps) {
  rt_training_batch batch;
  rt_trainer_options options;
  rt_training_metrics metrics;
  double loss;
  rt_status status = read_batch(text, &batch);
  if (status == RT_OK) status = rt_trainer_options_init(&options, sizeof options);
  if (status == RT_OK) status = rt_model_attach_lora(model, NULL);
  if (status != RT_OK) return status;
  options.learning_rate = 0.003;
  status = rt_trainer_create(model, &options, &trainer);
  metrics.struct_size = sizeof metrics;
  while (status == RT_OK && steps-- > 0) {
    status = rt_trainer_step(trainer, &batch, &metrics);
    if (status == RT_OK) printf("step %llu: loss %.4f\n", (unsigned long long)metrics.step, metrics.loss);
  }
  if (status == RT_OK) status = rt_model_evaluate(model, &batch, RT_ATTENTION_SERVING, &loss, NULL);
  if (status == RT_OK) printf("afterwards: loss %.4f\n", loss);
  return status;
}

int main(int argc, char** argv) {
  char* end = NULL;
  const unsigned long long steps = argc == 4 ? strtoull(argv[3], &end, 10) : 20;
  rt_status status;
  if (argc < 3 || argc > 4 || (end != NULL && *end != '\0') || steps == 0) {
    fprintf(stderr, "usage: adapters MODEL TEXT [STEPS]\n");
    return 2;
  }
  status = rt_model_load(argv[1], strlen(argv[1]), NULL, &model);
  if (status == RT_OK) status = train(argv[2], steps);
  if (status != RT_OK)
    fprintf(stderr, "adapters: %s: %s: %s\n", argv[1], rt_status_name(status), rt_last_error());
  rt_trainer_release(trainer);
  rt_model_release(model);
  return status == RT_OK ? 0 : 1;
}
