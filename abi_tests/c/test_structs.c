/* Every struct in every size: shorter, longer, ending inside a field, too long; NULL; init of any release. */
#include <stddef.h>

#include "c/check.h"

#define LONGEST 4096

/* Room for a struct of any release. */
typedef union {
  uint64_t struct_size;
  unsigned char bytes[LONGEST + 8];
} any_struct;

static rt_model* model;   /* with sessions and adapters */
static rt_model* changed; /* without */
static rt_trainer* trainer;
static rt_tokenizer* tokenizer;
static rt_kv_cache_factory* factory;
static rt_decode_session* session;
static rt_generator* generator;

/* --- a call for each struct --- */

/* The smallest model, as these calls are made often. */
static void make_small(rt_model_config* config) {
  config->layer_count = 1;
  config->width = 8;
  config->head_width = 2;
  config->mlp_width = 8;
}

static rt_status use_model_load_options(void* p) {
  rt_model_config config;
  rt_model* made = NULL;
  rt_status status = rt_model_config_init(&config, sizeof config);
  CHECK(status == RT_OK);
  make_small(&config);
  status = rt_model_create(&config, NULL, 1, p, &made);
  rt_model_release(made);
  return status;
}

static rt_status use_model_config(void* p) {
  rt_model* made = NULL;
  rt_status status;
  make_small(p);
  status = rt_model_create(p, NULL, 1, NULL, &made);
  rt_model_release(made);
  return status;
}

static rt_status use_encode_options(void* p) {
  uint64_t required = 0;
  return rt_tokenizer_encode(tokenizer, "a", 1, p, NULL, 0, &required);
}

static rt_status use_train_options(void* p) {
  rt_tokenizer* made = NULL;
  const rt_status status = rt_tokenizer_train(NULL, 0, p, &made);
  rt_tokenizer_release(made);
  return status;
}

static rt_status use_factory_options(void* p) {
  rt_kv_cache_factory* made = NULL;
  const rt_status status = rt_kv_cache_factory_create(model, p, &made);
  rt_kv_cache_factory_release(made);
  return status;
}

static rt_status use_session_options(void* p) {
  rt_decode_session* made = NULL;
  const rt_status status = rt_model_decode_session_create(model, p, &made);
  rt_decode_session_release(made);
  return status;
}

static rt_status use_generation_options(void* p) { return rt_generator_start(generator, "a", 1, p); }

static rt_status use_save_options(void* p) {
  /* To where nobody can write: the options were right when that is what is wrong. */
  const rt_status status = rt_model_save(changed, "/nowhere/at/all/model.rift", 26, p);
  return status == RT_INPUT_OUTPUT ? rt_backend_check(RT_BACKEND_CPU) : status;
}

static rt_status use_lora_options(void* p) {
  const rt_status status = rt_model_attach_lora(changed, p);
  return status == RT_OK ? rt_model_detach_lora(changed) : status;
}

static rt_status use_trainer_options(void* p) {
  rt_trainer* made = NULL;
  const rt_status status = rt_trainer_create(changed, p, &made);
  rt_trainer_release(made);
  return status;
}

static rt_status fill_trainer_info(void* p) { return rt_trainer_get_info(trainer, p); }
static rt_status fill_metrics(void* p) {
  static const uint32_t tokens[2] = {1, 2}, targets[2] = {2, 3};
  rt_training_batch batch;
  memset(&batch, 0, sizeof batch);
  batch.struct_size = sizeof batch;
  batch.tokens = tokens;
  batch.targets = targets;
  batch.sequences = 1;
  batch.length = 2;
  if (p == NULL) return RT_INVALID_ARGUMENT; /* metrics that nobody wants are allowed */
  return rt_trainer_step(trainer, &batch, p);
}

static rt_status fill_lora_options(void* p) { return rt_model_get_lora(model, p); }
static rt_status fill_config(void* p) { return rt_model_get_config(model, p); }
static rt_status fill_info(void* p) { return rt_model_get_info(model, p); }
static rt_status fill_parameter_info(void* p) { return rt_model_parameter(model, 0, p); }
static rt_status fill_tokenizer_info(void* p) { return rt_tokenizer_get_info(tokenizer, p); }
static rt_status fill_usage(void* p) { return rt_kv_cache_factory_get_usage(factory, p); }
static rt_status fill_session_usage(void* p) { return rt_decode_session_get_usage(session, p); }
static rt_status fill_stats(void* p) { return rt_generator_get_stats(generator, p); }
static rt_status fill_piece(void* p) {
  if (rt_generator_start(generator, "a", 1, NULL) != RT_OK) return RT_INTERNAL;
  return rt_generator_next(generator, p);
}

static rt_status init_model_load_options(void* p, uint64_t size) {
  return rt_model_load_options_init(p, size);
}
static rt_status init_model_config(void* p, uint64_t size) { return rt_model_config_init(p, size); }
static rt_status init_lora_options(void* p, uint64_t size) { return rt_lora_options_init(p, size); }
static rt_status init_trainer_options(void* p, uint64_t size) { return rt_trainer_options_init(p, size); }
static rt_status init_save_options(void* p, uint64_t size) { return rt_model_save_options_init(p, size); }
static rt_status init_encode_options(void* p, uint64_t size) { return rt_encode_options_init(p, size); }
static rt_status init_train_options(void* p, uint64_t size) {
  return rt_tokenizer_train_options_init(p, size);
}
static rt_status init_factory_options(void* p, uint64_t size) {
  return rt_kv_cache_factory_options_init(p, size);
}
static rt_status init_session_options(void* p, uint64_t size) {
  return rt_decode_session_options_init(p, size);
}
static rt_status init_generation_options(void* p, uint64_t size) {
  return rt_generation_options_init(p, size);
}

typedef struct {
  const char* name;
  uint64_t first_size, size; /* of the first release, and now */
  rt_status (*init)(void* p, uint64_t size);
  rt_status (*use)(void* p);
} input;

static const input inputs[] = {
    {"rt_model_load_options", 56, sizeof(rt_model_load_options), init_model_load_options,
     use_model_load_options},
    {"rt_model_config", 136, sizeof(rt_model_config), init_model_config, use_model_config},
    {"rt_model_save_options", 80, sizeof(rt_model_save_options), init_save_options, use_save_options},
    {"rt_lora_options", 32, sizeof(rt_lora_options), init_lora_options, use_lora_options},
    {"rt_trainer_options", 104, sizeof(rt_trainer_options), init_trainer_options, use_trainer_options},
    {"rt_tokenizer_train_options", 72, sizeof(rt_tokenizer_train_options), init_train_options,
     use_train_options},
    {"rt_encode_options", 32, sizeof(rt_encode_options), init_encode_options, use_encode_options},
    {"rt_kv_cache_factory_options", 48, sizeof(rt_kv_cache_factory_options), init_factory_options,
     use_factory_options},
    {"rt_decode_session_options", 24, sizeof(rt_decode_session_options), init_session_options,
     use_session_options},
    {"rt_generation_options", 144, sizeof(rt_generation_options), init_generation_options,
     use_generation_options},
};

typedef struct {
  const char* name;
  uint64_t first_size, size;
  rt_status (*fill)(void* p);
} output;

static const output outputs[] = {
    {"rt_model_config", 136, sizeof(rt_model_config), fill_config},
    {"rt_model_info", 80, sizeof(rt_model_info), fill_info},
    {"rt_lora_options", 32, sizeof(rt_lora_options), fill_lora_options},
    {"rt_training_metrics", 48, sizeof(rt_training_metrics), fill_metrics},
    {"rt_trainer_info", 40, sizeof(rt_trainer_info), fill_trainer_info},
    {"rt_parameter_info", 48, sizeof(rt_parameter_info), fill_parameter_info},
    {"rt_tokenizer_info", 32, sizeof(rt_tokenizer_info), fill_tokenizer_info},
    {"rt_kv_cache_usage", 48, sizeof(rt_kv_cache_usage), fill_usage},
    {"rt_decode_session_usage", 32, sizeof(rt_decode_session_usage), fill_session_usage},
    {"rt_generation_stats", 72, sizeof(rt_generation_stats), fill_stats},
    {"rt_generation_piece", 56, sizeof(rt_generation_piece), fill_piece},
};

/* Whether a struct that has grown may end here: rt_decode_session_options has, field by field. */
static int is_end(uint64_t first_size, uint64_t size, uint64_t end) {
  return end >= first_size && end <= LONGEST && (end >= size || (end - first_size) % 8 == 0);
}

static void expect(const char* name, uint64_t size, rt_status status, int valid) {
  const rt_status expected = valid ? RT_OK : RT_INVALID_ARGUMENT;
  const int message = valid ? rt_last_error()[0] == '\0' : strstr(rt_last_error(), "struct_size") != NULL;
  if (status == expected && message) return;
  check_fail(__FILE__, __LINE__, name);
  fprintf(check_report, "    struct_size %u gives status %d\n", (unsigned)size, (int)status);
}

static void test_input(const input* in) {
  static any_struct value, longest;
  uint64_t end, i;
  CHECK(in->init(NULL, in->size) == RT_INVALID_ARGUMENT);
  for (end = 0; end <= LONGEST + 8; end++) {
    const int valid = is_end(in->first_size, in->size, end);
    rt_status status;
    memset(&value, 0xA5, sizeof value);
    status = in->init(&value, end);
    expect(in->name, end, status, valid);
    for (i = valid ? end : 0; i < sizeof value; i++)
      CHECK(value.bytes[i] == 0xA5);                         /* writes at most `end` bytes */
    if (end > in->size + 16 && end < LONGEST - 16) continue; /* a use may be slow */
    if (valid) {
      CHECK(value.struct_size == end);
    } else {
      value.struct_size = end;
    }
    status = in->use(&value);
    expect(in->name, end, status, valid);
  }

  /* An unknown tail is accepted while it is zero. */
  CHECK(in->init(&longest, LONGEST) == RT_OK);
  for (i = in->size; i < LONGEST; i += 509) {
    char at[64];
    longest.bytes[i] = 1;
    CHECK(in->use(&longest) == RT_INVALID_ARGUMENT);
    snprintf(at, sizeof at, "at byte %u", (unsigned)i);
    CHECK(strstr(rt_last_error(), at) != NULL);
    longest.bytes[i] = 0;
  }
  CHECK(in->use(&longest) == RT_OK);
}

static void test_output(const output* out) {
  static any_struct full, value;
  uint64_t end, i;
  memset(&full, 0xA5, sizeof full);
  full.struct_size = out->size;
  CHECK(out->fill(&full) == RT_OK);
  CHECK(out->fill(NULL) == RT_INVALID_ARGUMENT);
  for (end = 0; end <= LONGEST + 8; end += end < out->size + 16 ? 1 : 507) {
    const int valid = is_end(out->first_size, out->size, end);
    memset(&value, 0xA5, sizeof value);
    value.struct_size = end;
    expect(out->name, end, out->fill(&value), valid);
    CHECK(value.struct_size == end);
    for (i = valid ? end : 8; i < sizeof value; i++) CHECK(value.bytes[i] == 0xA5);
    for (i = out->size; valid && i < end; i++) CHECK(value.bytes[i] == 0);
  }
}

/* Fields that an older program does not know have their defaults. */
static void test_short_session_options(void) {
  rt_decode_session_options options;
  rt_decode_session* made = NULL;
  uint64_t capacity = 0, block_size = 0;
  memset(&options, 0xFF, sizeof options);
  options.struct_size = offsetof(rt_decode_session_options, maximum_context);
  options.kind = RT_KV_CACHE_PAGED;
  options.element_type = RT_KV_ELEMENT_F32;
  options.block_size = 4;
  OK(rt_model_decode_session_create(model, &options, &made));
  OK(rt_decode_session_capacity(made, &capacity));
  OK(rt_decode_session_block_size(made, &block_size));
  CHECK(capacity == 256 && block_size == 4);
  rt_decode_session_release(made);
}

int main(int argc, char** argv) {
  rt_model_config config;
  size_t i;
  check_begin(argc, argv);
  OK(rt_model_config_init(&config, sizeof config));
  make_small(&config);
  OK(rt_tokenizer_create_byte(&tokenizer));
  OK(rt_model_create(&config, tokenizer, 1, NULL, &model));
  OK(rt_model_create(&config, tokenizer, 1, NULL, &changed));
  OK(rt_model_attach_lora(model, NULL));
  OK(rt_trainer_create(changed, NULL, &trainer));
  OK(rt_kv_cache_factory_create(model, NULL, &factory));
  OK(rt_model_decode_session_create(model, NULL, &session));
  OK(rt_generator_create(model, NULL, factory, &generator));
  for (i = 0; i < sizeof inputs / sizeof inputs[0]; i++) test_input(&inputs[i]);
  for (i = 0; i < sizeof outputs / sizeof outputs[0]; i++) test_output(&outputs[i]);
  test_short_session_options();
  rt_model_release(model);
  rt_model_release(changed);
  rt_trainer_release(trainer);
  rt_decode_session_release(session);
  rt_generator_release(generator);
  rt_kv_cache_factory_release(factory);
  rt_tokenizer_release(tokenizer);
  return check_end();
}
