/* Trainers: what they do, what they refuse and with which words, and that a refused call changes nothing. */
#include "c/check.h"

#define VOCABULARY 40
#define WIDTH 16
#define CONTEXT 12
#define LENGTH 10
#define HEAD (VOCABULARY * WIDTH)

static rt_model* model;
static rt_trainer* trainer;
static rt_cancel* cancel;
static uint32_t tokens[2 * LENGTH], targets[2 * LENGTH];
static uint64_t required;
static char path[512], missing[512];

static rt_model* make_model(int32_t type) {
  rt_model_config config;
  rt_model *made = NULL, *converted = NULL;
  OK(rt_model_config_init(&config, sizeof config));
  config.vocabulary_size = VOCABULARY;
  config.maximum_context = CONTEXT;
  config.layer_count = 2;
  config.width = type == RT_TYPE_Q8_0 ? 32 : WIDTH;
  config.head_count = config.kv_head_count = 2;
  config.head_width = config.width / 2;
  config.mlp_width = 32;
  OK(rt_model_create(&config, NULL, 3, NULL, &made));
  if (type != RT_TYPE_KEEP) {
    rt_model_save_options options;
    char file[512];
    snprintf(file, sizeof file, "%s/typed.rift", check_scratch);
    OK(rt_model_save_options_init(&options, sizeof options));
    options.type = type;
    OK(rt_model_save(made, file, strlen(file), &options));
    OK(rt_model_load(file, strlen(file), NULL, &converted));
    rt_model_release(made);
    return converted;
  }
  return made;
}

static rt_training_batch batch_of(uint64_t sequences, uint64_t length) {
  rt_training_batch batch;
  memset(&batch, 0, sizeof batch);
  batch.struct_size = sizeof batch;
  batch.tokens = tokens;
  batch.targets = targets;
  batch.sequences = sequences;
  batch.length = length;
  return batch;
}

static uint64_t steps(void) {
  rt_trainer_info info;
  info.struct_size = sizeof info;
  OK(rt_trainer_get_info(trainer, &info));
  return info.step;
}

static void read_head(float* values) {
  OK(rt_model_read_parameter(model, "head.weight", 11, values, HEAD, &required));
}

/* The parameters and the trainer are as they were. */
static void check_intact(const char* after, uint64_t step) {
  static float before[HEAD], now[HEAD];
  static uint64_t known = UINT64_MAX;
  if (known != step) read_head(before);
  known = step;
  read_head(now);
  if (steps() == step && memcmp(before, now, sizeof now) == 0) return;
  check_fail(__FILE__, __LINE__, after);
}

static void test_create(void) {
  rt_trainer_options options;
  rt_trainer* made = (rt_trainer*)&options;
  rt_model* quantised = make_model(RT_TYPE_Q8_0);
  OK(rt_trainer_options_init(&options, sizeof options));
  CHECK(options.learning_rate == 3e-4 && options.beta1 == 0.9 && options.beta2 == 0.999);
  CHECK(options.epsilon == 1e-8 && options.weight_decay == 0.01 && options.maximum_gradient_norm == 1);
  CHECK(options.schedule == RT_SCHEDULE_CONSTANT && options.attention == RT_ATTENTION_FLASH);
  CHECK(options.warmup_steps == 0 && options.total_steps == 0 && options.final_rate == 0);
  CHECK(options.micro_batch == 0 && options.recompute == 0 && options.reserved == 0);

  REFUSED(rt_trainer_create(NULL, &options, &made), RT_INVALID_ARGUMENT, "model is NULL");
  CHECK(made == NULL);
  REFUSED(rt_trainer_create(model, &options, NULL), RT_INVALID_ARGUMENT, "trainer is NULL");
  REFUSED(
      rt_trainer_create(quantised, &options, &made), RT_UNSUPPORTED,
      "embedding.token is q8_0: quantised weights cannot be trained; attach adapters, or convert the model");
#define WRONG(field, value, text)                                                  \
  do {                                                                             \
    OK(rt_trainer_options_init(&options, sizeof options));                         \
    options.field = value;                                                         \
    REFUSED(rt_trainer_create(model, &options, &made), RT_INVALID_ARGUMENT, text); \
    CHECK(made == NULL);                                                           \
  } while (0)
  WRONG(learning_rate, -1, "learning_rate is -1");
  WRONG(beta1, 1, "beta1 is 1, not between");
  WRONG(beta2, -0.5, "beta2 is -0.5");
  WRONG(epsilon, 0, "epsilon is 0");
  WRONG(weight_decay, -2, "weight_decay is -2");
  WRONG(weight_decay, 1e5, "weight_decay 100000 times learning_rate 0.0003 is not below 1");
  WRONG(maximum_gradient_norm, -1, "maximum_gradient_norm is -1");
  WRONG(schedule, 3, "options.schedule is 3, not one of 0 to 2");
  WRONG(schedule, RT_SCHEDULE_COSINE, "total_steps is 0");
  WRONG(attention, RT_ATTENTION_SERVING, "options.attention is 2, not one of 0 to 1");
  WRONG(total_steps, 5, "total_steps is 5; a constant schedule has no end");
  WRONG(final_rate, 2, "final_rate is 2");
  WRONG(micro_batch, UINT64_MAX, "options.micro_batch is 18446744073709551615");
  WRONG(recompute, 2, "options.recompute is 2");
  WRONG(reserved, 1, "options.reserved is 1");
#undef WRONG
  rt_model_release(quantised);
}

static void test_step(void) {
  rt_training_metrics metrics;
  rt_training_batch batch = batch_of(2, LENGTH);
  rt_trainer_info info;
  static float gradient[HEAD];
  REFUSED(rt_trainer_read_gradient(trainer, "head.weight", 11, gradient, HEAD, &required), RT_INVALID_STATE,
          "no step has computed them");
  metrics.struct_size = sizeof metrics;
  OK(rt_trainer_step(trainer, &batch, &metrics));
  CHECK(metrics.step == 1 && metrics.target_count == 2 * LENGTH - 3 && metrics.learning_rate == 3e-4);
  CHECK(metrics.loss > 3 && metrics.loss < 4.5 && metrics.gradient_norm > 0);
  OK(rt_trainer_step(trainer, &batch, NULL));
  info.struct_size = sizeof info;
  OK(rt_trainer_get_info(trainer, &info));
  CHECK(info.step == 2 && info.trained_count > HEAD && info.optimizer_bytes > 12 * info.trained_count);
  CHECK(info.activation_bytes > 0);
  OK(rt_trainer_read_gradient(trainer, "head.weight", 11, NULL, 0, &required));
  CHECK(required == HEAD);
  OK(rt_trainer_read_gradient(trainer, "head.weight", 11, gradient, HEAD, &required));
  CHECK(gradient[WIDTH] < 0 || gradient[WIDTH] > 0);

  REFUSED(rt_trainer_read_gradient(NULL, "head.weight", 11, gradient, HEAD, &required), RT_INVALID_ARGUMENT,
          "trainer is NULL");
  REFUSED(rt_trainer_read_gradient(trainer, NULL, 11, gradient, HEAD, &required), RT_INVALID_ARGUMENT,
          "name is NULL");
  REFUSED(rt_trainer_read_gradient(trainer, "tail", 4, gradient, HEAD, &required), RT_OUT_OF_RANGE,
          "the trainer has no parameter \"tail\"");
  REFUSED(rt_trainer_read_gradient(trainer, "head.weight", 11, NULL, HEAD, &required), RT_INVALID_ARGUMENT,
          "values is NULL");
  REFUSED(rt_trainer_read_gradient(trainer, "head.weight", 11, gradient, HEAD, NULL), RT_INVALID_ARGUMENT,
          "required is NULL");
  REFUSED(rt_trainer_read_gradient(trainer, "head.weight", 11, gradient, HEAD - 1, &required),
          RT_BUFFER_TOO_SMALL, "values: a capacity of");
  REFUSED(rt_trainer_get_info(NULL, &info), RT_INVALID_ARGUMENT, "trainer is NULL");
  REFUSED(rt_trainer_get_info(trainer, NULL), RT_INVALID_ARGUMENT, "info is NULL");
}

static void test_batches(void) {
  rt_training_batch batch;
  rt_training_metrics metrics;
  const uint64_t step = steps();
  check_intact("start", step);
  REFUSED(rt_trainer_step(NULL, NULL, NULL), RT_INVALID_ARGUMENT, "trainer is NULL");
  REFUSED(rt_trainer_step(trainer, NULL, NULL), RT_INVALID_ARGUMENT, "batch is NULL");
#define WRONG(change, status, text)                                \
  do {                                                             \
    batch = batch_of(2, LENGTH);                                   \
    change;                                                        \
    REFUSED(rt_trainer_step(trainer, &batch, NULL), status, text); \
    check_intact(text, step);                                      \
  } while (0)
  WRONG(batch.struct_size = 40, RT_INVALID_ARGUMENT, "batch.struct_size 40 is below 48");
  WRONG(batch.tokens = NULL, RT_INVALID_ARGUMENT, "batch.tokens is NULL");
  WRONG(batch.targets = NULL, RT_INVALID_ARGUMENT, "batch.targets is NULL");
  WRONG(batch.sequences = 0, RT_INVALID_ARGUMENT, "a batch of 0 sequences of length 10");
  WRONG(batch.length = 0, RT_INVALID_ARGUMENT, "a batch of 2 sequences of length 0");
  WRONG(batch.sequences = (uint64_t)1 << 40, RT_INVALID_ARGUMENT, "a batch of 1099511627776 sequences");
  WRONG(batch = batch_of(1, CONTEXT + 1), RT_CONTEXT_FULL,
        "13 tokens are longer than the maximum context of 12");
  WRONG(tokens[4] = VOCABULARY, RT_OUT_OF_RANGE,
        "token 40 at sequence 0, position 4 is not below the vocabulary size 40");
  tokens[4] = 1;
  WRONG(targets[13] = VOCABULARY + 1, RT_OUT_OF_RANGE, "target 41 at sequence 1, position 3");
  targets[13] = 1;
  WRONG(batch = batch_of(1, 3), RT_INVALID_ARGUMENT, "no target of the batch counts");
  WRONG(rt_cancel_set(cancel); batch.cancel = cancel, RT_CANCELLED, "cancelled");
  rt_cancel_reset(cancel);
#undef WRONG
  batch = batch_of(2, LENGTH);
  metrics.struct_size = 47;
  REFUSED(rt_trainer_step(trainer, &batch, &metrics), RT_INVALID_ARGUMENT, "metrics.struct_size 47");
  check_intact("metrics", step);
}

static void test_evaluate(void) {
  rt_training_batch batch = batch_of(2, LENGTH);
  double loss[3] = {0, 0, 0};
  uint64_t count = 0, step = steps();
  rt_decode_session* session = NULL;
  int32_t attention;
  check_intact("before evaluation", step);
  OK(rt_model_decode_session_create(model, NULL, &session)); /* sessions may be alive */
  for (attention = 0; attention < 3; attention++) {
    OK(rt_model_evaluate(model, &batch, attention, &loss[attention], &count));
    CHECK(count == 2 * LENGTH - 3);
    CHECK(loss[attention] > loss[0] - 1e-5 && loss[attention] < loss[0] + 1e-5 && loss[0] > 1);
  }
  OK(rt_model_evaluate(model, &batch, 0, &loss[1], NULL));
  CHECK(loss[0] >= loss[1] && loss[0] <= loss[1]);
  REFUSED(rt_model_evaluate(NULL, &batch, 0, loss, &count), RT_INVALID_ARGUMENT, "model is NULL");
  REFUSED(rt_model_evaluate(model, NULL, 0, loss, &count), RT_INVALID_ARGUMENT, "batch is NULL");
  REFUSED(rt_model_evaluate(model, &batch, 3, loss, &count), RT_INVALID_ARGUMENT,
          "attention is 3, not one of 0 to 2");
  REFUSED(rt_model_evaluate(model, &batch, 0, NULL, &count), RT_INVALID_ARGUMENT, "loss is NULL");
  batch.cancel = cancel;
  rt_cancel_set(cancel);
  for (attention = 0; attention < 3; attention++)
    REFUSED(rt_model_evaluate(model, &batch, attention, loss, &count), RT_CANCELLED, "cancelled");
  rt_cancel_reset(cancel);
  rt_decode_session_release(session);
  check_intact("evaluation", step);
}

static void test_sessions(void) {
  rt_training_batch batch = batch_of(2, LENGTH);
  rt_decode_session* session = NULL;
  rt_model* narrow = make_model(RT_TYPE_F16);
  rt_trainer* made = NULL;
  const uint64_t step = steps();
  OK(rt_model_decode_session_create(model, NULL, &session));
  OK(rt_trainer_save(trainer, path, strlen(path), NULL, 0, NULL));
  REFUSED(rt_trainer_step(trainer, NULL, NULL), RT_INVALID_STATE,
          "a training step: 1 decode session of the model is alive"); /* state is checked before arguments */
  REFUSED(rt_trainer_step(trainer, &batch, NULL), RT_INVALID_STATE, "1 decode session");
  REFUSED(rt_trainer_load(trainer, path, strlen(path), NULL), RT_INVALID_STATE,
          "loading a checkpoint: 1 decode session of the model is alive");
  check_intact("sessions", step);
  rt_decode_session_release(session);

  OK(rt_model_decode_session_create(narrow, NULL, &session));
  REFUSED(rt_trainer_create(narrow, NULL, &made), RT_INVALID_STATE, "1 decode session of the model is alive");
  rt_decode_session_release(session);
  OK(rt_trainer_create(narrow, NULL, &made));
  rt_trainer_release(made);
  rt_model_release(narrow);
}

static void test_adapters(void) {
  rt_training_batch batch = batch_of(2, LENGTH);
  rt_trainer* made = NULL;
  rt_training_metrics metrics;
  const uint64_t step = steps();
  OK(rt_model_attach_lora(model, NULL));
  REFUSED(rt_trainer_step(trainer, &batch, NULL), RT_INVALID_STATE,
          "adapters were attached, detached or merged since the trainer was made");
  REFUSED(rt_trainer_save(trainer, path, strlen(path), NULL, 0, NULL), RT_INVALID_STATE, "adapters were");
  REFUSED(rt_trainer_load(trainer, path, strlen(path), NULL), RT_INVALID_STATE, "adapters were");
  OK(rt_trainer_create(model, NULL, &made));
  metrics.struct_size = sizeof metrics;
  OK(rt_trainer_step(made, &batch, &metrics));
  CHECK(metrics.step == 1);
  REFUSED(rt_trainer_load(made, path, strlen(path), NULL), RT_INVALID_ARGUMENT,
          "of all parameters; this trainer trains adapters");
  OK(rt_model_detach_lora(model));
  REFUSED(rt_trainer_step(made, &batch, NULL), RT_INVALID_STATE, "adapters were attached");
  rt_trainer_release(made);
  check_intact("adapters", step);
}

static void test_not_finite(void) {
  static float values[WIDTH], before[WIDTH];
  rt_training_batch batch = batch_of(2, LENGTH);
  const uint64_t step = steps();
  size_t i;
  OK(rt_model_read_parameter(model, "final_norm.weight", 17, before, WIDTH, &required));
  for (i = 0; i < WIDTH; i++) values[i] = 3e38f;
  OK(rt_model_write_parameter(model, "final_norm.weight", 17, values, WIDTH));
  REFUSED(rt_trainer_step(trainer, &batch, NULL), RT_NON_FINITE, "the loss is not finite");
  check_intact("not finite", step);
  OK(rt_model_write_parameter(model, "final_norm.weight", 17, before, WIDTH));
}

static void test_checkpoints(void) {
  static const char state[] = "epoch 1, row 20";
  char text[64];
  rt_training_batch batch = batch_of(2, LENGTH);
  rt_model *first = model, *second = make_model(RT_TYPE_KEEP);
  rt_trainer *run = trainer, *resumed = NULL;
  static float expected[HEAD], found[HEAD];
  FILE* file;
  OK(rt_trainer_save(trainer, path, strlen(path), state, sizeof state - 1, cancel));
  OK(rt_checkpoint_state(path, strlen(path), NULL, 0, &required));
  CHECK(required == sizeof state - 1);
  OK(rt_checkpoint_state(path, strlen(path), text, sizeof text, &required));
  CHECK(required == sizeof state - 1 && memcmp(text, state, required) == 0);
  OK(rt_trainer_create(second, NULL, &resumed));
  OK(rt_trainer_load(resumed, path, strlen(path), cancel));
  OK(rt_trainer_step(resumed, &batch, NULL));
  OK(rt_trainer_step(run, &batch, NULL));
  read_head(expected);
  model = second;
  read_head(found);
  model = first;
  CHECK(memcmp(expected, found, sizeof found) == 0);
  rt_trainer_release(resumed);
  rt_model_release(second);

  check_intact("a step", steps());
  REFUSED(rt_trainer_save(NULL, path, strlen(path), NULL, 0, NULL), RT_INVALID_ARGUMENT, "trainer is NULL");
  REFUSED(rt_trainer_save(trainer, NULL, 3, NULL, 0, NULL), RT_INVALID_ARGUMENT, "path is NULL");
  REFUSED(rt_trainer_save(trainer, path, strlen(path), NULL, 3, NULL), RT_INVALID_ARGUMENT, "state is NULL");
  REFUSED(rt_trainer_save(trainer, path, strlen(path), "\xFF", 1, NULL), RT_INVALID_ARGUMENT, "UTF-8");
  REFUSED(rt_trainer_save(trainer, missing, strlen(missing), NULL, 0, NULL), RT_INPUT_OUTPUT, "no/folder");
  REFUSED(rt_trainer_load(NULL, path, strlen(path), NULL), RT_INVALID_ARGUMENT, "trainer is NULL");
  REFUSED(rt_trainer_load(trainer, NULL, 3, NULL), RT_INVALID_ARGUMENT, "path is NULL");
  REFUSED(rt_trainer_load(trainer, missing, strlen(missing), NULL), RT_INPUT_OUTPUT, "no/folder");
  REFUSED(rt_checkpoint_state(NULL, 3, text, sizeof text, &required), RT_INVALID_ARGUMENT, "path is NULL");
  REFUSED(rt_checkpoint_state(path, strlen(path), NULL, 5, &required), RT_INVALID_ARGUMENT, "state is NULL");
  REFUSED(rt_checkpoint_state(path, strlen(path), text, sizeof text, NULL), RT_INVALID_ARGUMENT,
          "required is NULL");
  REFUSED(rt_checkpoint_state(path, strlen(path), text, 3, &required), RT_BUFFER_TOO_SMALL,
          "state: a capacity of 3 is below the 15 required");
  REFUSED(rt_checkpoint_state(missing, strlen(missing), text, sizeof text, &required), RT_INPUT_OUTPUT,
          "no/folder");
  rt_cancel_set(cancel);
  REFUSED(rt_trainer_save(trainer, path, strlen(path), NULL, 0, cancel), RT_CANCELLED, "saving a checkpoint");
  REFUSED(rt_trainer_load(trainer, path, strlen(path), cancel), RT_CANCELLED, "loading a checkpoint");
  rt_cancel_reset(cancel);
  OK(rt_checkpoint_state(path, strlen(path), text, sizeof text, &required)); /* still the whole one */
  CHECK(required == sizeof state - 1);
  check_intact("checkpoints", steps());

  file = fopen(path, "r+b");
  CHECK(file != NULL && fseek(file, -5, SEEK_END) == 0 && fputc(7, file) == 7 && fclose(file) == 0);
  REFUSED(rt_trainer_load(trainer, path, strlen(path), NULL), RT_CORRUPT_DATA, "riftco.checksum");
  check_intact("a damaged checkpoint", steps());
}

/* A trainer keeps its model alive. */
static void test_release(void) {
  rt_training_batch batch = batch_of(2, LENGTH);
  rt_model_release(model);
  OK(rt_trainer_step(trainer, &batch, NULL));
  rt_trainer_release(trainer);
  rt_trainer_release(NULL);
}

int main(int argc, char** argv) {
  uint32_t i;
  check_begin(argc, argv);
  snprintf(path, sizeof path, "%s/a.checkpoint", check_scratch);
  snprintf(missing, sizeof missing, "%s/no/folder/x", check_scratch);
  for (i = 0; i < 2 * LENGTH; i++) {
    tokens[i] = i * 7 % VOCABULARY;
    targets[i] = i < 3 ? RT_NO_TARGET : i * 5 % VOCABULARY;
  }
  OK(rt_cancel_create(&cancel));
  model = make_model(RT_TYPE_KEEP);
  test_create();
  OK(rt_trainer_create(model, NULL, &trainer));
  test_step();
  test_batches();
  test_evaluate();
  test_sessions();
  test_adapters();
  test_not_finite();
  test_checkpoints();
  test_release();
  rt_cancel_release(cancel);
  return check_end();
}
