/* Runs a model that is in memory, as it would be in a program that carries one: load_from_buffer MODEL PROMPT [TOKENS].
 *
 *     cc -std=c99 load_from_buffer.c $(pkg-config --cflags --libs riftco) -o load_from_buffer
 */
#include <riftco/riftco.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void show_progress(void* user_data, uint64_t done, uint64_t total) {
  int* percent = user_data;
  const int now = total > 0 ? (int)(100 * (double)done / (double)total) : 100;
  if (now / 10 > *percent / 10) fprintf(stderr, "loading: %d %%\n", now);
  *percent = now;
}

/* The bytes of a file, which the caller frees; NULL when it cannot be read. */
static void* read_file(const char* path, uint64_t* size) {
  FILE* file = fopen(path, "rb");
  void* data = NULL;
  long length = -1;
  if (file != NULL && fseek(file, 0, SEEK_END) == 0) length = ftell(file);
  if (length >= 0) data = malloc((size_t)length + 1);
  *size = (uint64_t)length;
  if (data != NULL && (fseek(file, 0, SEEK_SET) != 0 || fread(data, 1, *size, file) != *size)) {
    free(data);
    data = NULL;
  }
  if (file != NULL) fclose(file);
  return data;
}

int main(int argc, char** argv) {
  rt_model_load_options load;
  rt_generation_options how;
  rt_model* model = NULL;
  rt_generator* generator = NULL;
  rt_generation_piece piece = {0};
  uint64_t size = 0;
  int percent = 0;
  void* data;
  rt_status status;
  if (argc < 3) {
    fprintf(stderr, "usage: load_from_buffer MODEL PROMPT [TOKENS]\n");
    return 2;
  }
  data = read_file(argv[1], &size);
  if (data == NULL) {
    fprintf(stderr, "cannot read %s\n", argv[1]);
    return 1;
  }

  status = rt_model_load_options_init(&load, sizeof load);
  load.progress = show_progress;
  load.progress_user_data = &percent;
  load.memory_limit =
      2 * size + (UINT64_C(1) << 30); /* what this program grants to weights and activations */
  if (status == RT_OK) status = rt_model_load_buffer(data, size, &load, &model);
  free(data); /* the model has copied what it needs */

  if (status == RT_OK) status = rt_generation_options_init(&how, sizeof how);
  if (argc > 3) how.max_new_tokens = strtoull(argv[3], NULL, 10);
  if (status == RT_OK) status = rt_generator_create(model, NULL, NULL, &generator);
  if (status == RT_OK) status = rt_generator_start(generator, argv[2], strlen(argv[2]), &how);
  piece.struct_size = sizeof piece;
  while (status == RT_OK && piece.finish == RT_FINISH_NONE) {
    status = rt_generator_next(generator, &piece);
    if (status == RT_OK) fwrite(piece.bytes, 1, (size_t)piece.size, stdout);
  }
  if (status == RT_OK) puts("");
  if (status != RT_OK) fprintf(stderr, "%s: %s\n", rt_status_name(status), rt_last_error());
  rt_generator_release(generator);
  rt_model_release(model);
  return status != RT_OK;
}
