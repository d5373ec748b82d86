/* Writes a small random model with the byte tokenizer: make_model FILE. */
#include <riftco/riftco.h>
#include <string.h>

int main(int argc, char** argv) {
  rt_tokenizer* tokenizer = NULL;
  rt_model* model = NULL;
  rt_status status = argc == 2 ? RT_OK : RT_INVALID_ARGUMENT;
  if (status == RT_OK) status = rt_tokenizer_create_byte(&tokenizer);
  if (status == RT_OK) status = rt_model_create(NULL, tokenizer, 1, NULL, &model);
  if (status == RT_OK) status = rt_model_save(model, argv[1], strlen(argv[1]), NULL);
  rt_model_release(model);
  rt_tokenizer_release(tokenizer);
  return (int)status;
}
