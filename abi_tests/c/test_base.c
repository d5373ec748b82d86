/* Versions, status names, back ends, the instruction set, cancel flags, logging and the last error. */
#include "c/check.h"

static char log_text[512];
static int log_calls, log_user_data;

static void on_log(void* user_data, int32_t level, const char* message, uint64_t size) {
  CHECK(user_data == &log_user_data && level == RT_LOG_INFO);
  log_calls++;
  if (size < sizeof log_text) {
    memcpy(log_text, message, (size_t)size);
    log_text[size] = '\0';
  }
}

static void test_status_names(void) {
  int32_t status;
  CHECK(strcmp(rt_status_name(RT_OK), "ok") == 0);
  CHECK(strcmp(rt_status_name(RT_BUFFER_TOO_SMALL), "buffer too small") == 0);
  CHECK(strcmp(rt_status_name(RT_NON_FINITE), "non-finite") == 0);
  CHECK(strcmp(rt_status_name(RT_INTERNAL), "internal") == 0);
  for (status = 0; status <= RT_NON_FINITE; status++)
    CHECK(strcmp(rt_status_name(status), "unknown status") != 0);
  CHECK(strcmp(rt_status_name(RT_NON_FINITE + 1), "unknown status") == 0);
  CHECK(strcmp(rt_status_name(-1), "unknown status") == 0);
}

static void test_backends(void) {
  OK(rt_backend_check(RT_BACKEND_CPU));
  REFUSED(rt_backend_check(RT_BACKEND_METAL), RT_BACKEND_UNAVAILABLE, "metal");
  REFUSED(rt_backend_check(RT_BACKEND_CUDA), RT_BACKEND_UNAVAILABLE, "cuda");
  REFUSED(rt_backend_check(RT_BACKEND_TPU), RT_BACKEND_UNAVAILABLE, "tpu");
  CHECK(rt_backend_check(99) != RT_OK && strstr(rt_last_error(), "99") != NULL);
  CHECK(rt_backend_check(-1) != RT_OK);
}

static void test_instruction_set(void) {
  int32_t isa = -1, other;
  REFUSED(rt_cpu_isa_force(4), RT_INVALID_ARGUMENT, "isa is 4");
  REFUSED(rt_cpu_isa_force(-1), RT_INVALID_ARGUMENT, "isa is -1");
  REFUSED(rt_cpu_isa(NULL), RT_INVALID_ARGUMENT, "isa is NULL");
  OK(rt_cpu_isa(&isa));
  CHECK(isa >= RT_CPU_ISA_SCALAR && isa <= RT_CPU_ISA_NEON);
  OK(rt_cpu_isa_force(isa));
  for (other = RT_CPU_ISA_SCALAR; other <= RT_CPU_ISA_NEON; other++) {
    rt_status status = rt_cpu_isa_force(other);
    CHECK(status == (other == isa ? RT_OK : RT_INVALID_STATE) || status == RT_UNSUPPORTED);
  }
  CHECK(rt_kernel_contract() > 0);
}

static void test_log(void) {
  char path[512];
  rt_model* model = NULL;
  REFUSED(rt_log_set_callback(on_log, NULL, 3), RT_INVALID_ARGUMENT, "level is 3");
  REFUSED(rt_log_set_callback(NULL, NULL, -1), RT_INVALID_ARGUMENT, "level is -1");
  snprintf(path, sizeof path, "%s/model.rift", check_scratch);
  OK(rt_model_create(NULL, NULL, 1, NULL, &model));
  OK(rt_model_save(model, path, strlen(path), NULL));
  rt_model_release(model);

  OK(rt_model_load(path, strlen(path), NULL, &model)); /* silent by default */
  rt_model_release(model);
  OK(rt_log_set_callback(on_log, &log_user_data, RT_LOG_INFO));
  OK(rt_model_load(path, strlen(path), NULL, &model));
  rt_model_release(model);
  CHECK(log_calls == 1 && strstr(log_text, "model.rift") != NULL);
  OK(rt_log_set_callback(on_log, &log_user_data, RT_LOG_WARNING));
  OK(rt_model_load(path, strlen(path), NULL, &model));
  rt_model_release(model);
  OK(rt_log_set_callback(NULL, NULL, RT_LOG_DEBUG));
  OK(rt_model_load(path, strlen(path), NULL, &model));
  rt_model_release(model);
  CHECK(log_calls == 1);
}

/* Set by a failure, cleared by a success, of a fixed size, and whole UTF-8 characters where the path was. */
static void test_last_error(void) {
  static char path[4000];
  rt_model* model = NULL;
  const unsigned char* c;
  memset(path, 0, sizeof path);
  while (strlen(path) < 3990) strcat(path, "\xC3\xA9"); /* e with acute accent */
  CHECK(rt_model_load(path, strlen(path), NULL, &model) != RT_OK && model == NULL);
  CHECK(strncmp(rt_last_error(), "[rt_model_load] ", 16) == 0 && strlen(rt_last_error()) < 4096);
  for (c = (const unsigned char*)rt_last_error(); *c != 0;) {
    if (*c == 0xC3) {
      CHECK(c[1] == 0xA9);
      c++;
    } else {
      CHECK(*c < 0x80);
    }
    c++;
  }
  CHECK(strcmp(rt_status_name(0), "ok") == 0 &&
        rt_last_error()[0] == '['); /* calls without a status leave it */
  OK(rt_backend_check(RT_BACKEND_CPU));
  CHECK(rt_last_error()[0] == '\0');
}

int main(int argc, char** argv) {
  check_begin(argc, argv);
  CHECK(rt_last_error()[0] == '\0');
  CHECK(rt_abi_version() >> 16 == RT_ABI_VERSION_MAJOR);
  CHECK(rt_abi_version() >= (RT_ABI_VERSION_MAJOR << 16 | RT_ABI_VERSION_MINOR));
  test_status_names();
  test_backends();
  test_instruction_set();
  test_log();
  test_last_error();
  return check_end();
}
