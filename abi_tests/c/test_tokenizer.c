/* Tokenizers and stream decoders: use and misuse. */
#include "c/check.h"

static rt_tokenizer* tokenizer;

static void test_encode_and_decode(void) {
  const rt_byte_range range = {0, 2};
  rt_encode_options options;
  uint32_t tokens[8] = {9, 9, 9, 9, 9, 9, 9, 9};
  char text[8] = "#######";
  uint64_t required = 0;
  OK(rt_tokenizer_encode(tokenizer, "h\xC3\xA9", 3, NULL, NULL, 0, &required)); /* a size query */
  CHECK(required == 3);
  required = 0;
  REFUSED(rt_tokenizer_encode(tokenizer, "h\xC3\xA9", 3, NULL, tokens, 2, &required), RT_BUFFER_TOO_SMALL,
          "a capacity of 2 is below the 3 required");
  CHECK(required == 3 && tokens[0] == 9);
  OK(rt_tokenizer_encode(tokenizer, "h\xC3\xA9", 3, NULL, tokens, 8, &required));
  CHECK(required == 3 && tokens[0] == 'h' && tokens[1] == 0xC3 && tokens[2] == 0xA9 && tokens[3] == 9);
  OK(rt_tokenizer_encode(tokenizer, NULL, 0, NULL, tokens, 8, &required));
  CHECK(required == 0);
  REFUSED(rt_tokenizer_encode(NULL, "a", 1, NULL, tokens, 8, &required), RT_INVALID_ARGUMENT,
          "tokenizer is NULL");
  REFUSED(rt_tokenizer_encode(tokenizer, NULL, 1, NULL, tokens, 8, &required), RT_INVALID_ARGUMENT,
          "text is NULL");
  REFUSED(rt_tokenizer_encode(tokenizer, "a", UINT64_MAX, NULL, tokens, 8, &required), RT_OVERFLOW, "text");
  REFUSED(rt_tokenizer_encode(tokenizer, "a", 1, NULL, NULL, 8, &required), RT_INVALID_ARGUMENT,
          "tokens is NULL");
  REFUSED(rt_tokenizer_encode(tokenizer, "a", 1, NULL, tokens, 8, NULL), RT_INVALID_ARGUMENT,
          "required is NULL");
  OK(rt_encode_options_init(&options, sizeof options));
  options.add_special = 2;
  REFUSED(rt_tokenizer_encode(tokenizer, "a", 1, &options, tokens, 8, &required), RT_INVALID_ARGUMENT,
          "options.add_special is 2");
  options.add_special = 0;
  options.parse_special = 7;
  REFUSED(rt_tokenizer_encode(tokenizer, "a", 1, &options, tokens, 8, &required), RT_INVALID_ARGUMENT,
          "options.parse_special is 7");
  options.parse_special = 0;
  options.strict = 3;
  REFUSED(rt_tokenizer_encode(tokenizer, "a", 1, &options, tokens, 8, &required), RT_INVALID_ARGUMENT,
          "options.strict is 3");
  options.strict = 0;
  options.plain_range_count = 1;
  REFUSED(rt_tokenizer_encode(tokenizer, "a", 1, &options, tokens, 8, &required), RT_INVALID_ARGUMENT,
          "options.plain_ranges is NULL");
  options.plain_ranges = &range;
  REFUSED(rt_tokenizer_encode(tokenizer, "a", 1, &options, tokens, 8, &required), RT_OUT_OF_RANGE,
          "the plain range 0 to 2");
  options.plain_range_count = 0;
  options.reserved = 1;
  REFUSED(rt_tokenizer_encode(tokenizer, "a", 1, &options, tokens, 8, &required), RT_INVALID_ARGUMENT,
          "options.reserved is 1");

  OK(rt_tokenizer_decode(tokenizer, tokens, 3, 0, NULL, 0, &required));
  CHECK(required == 3);
  REFUSED(rt_tokenizer_decode(tokenizer, tokens, 3, 0, text, 2, &required), RT_BUFFER_TOO_SMALL, "2");
  CHECK(text[0] == '#');
  OK(rt_tokenizer_decode(tokenizer, tokens, 3, 1, text, 8, &required));
  CHECK(memcmp(text, "h\xC3\xA9#", 4) == 0);
  tokens[1] = 256;
  REFUSED(rt_tokenizer_decode(tokenizer, tokens, 3, 0, text, 8, &required), RT_OUT_OF_RANGE, "256");
  REFUSED(rt_tokenizer_decode(tokenizer, tokens, 3, 2, text, 8, &required), RT_INVALID_ARGUMENT,
          "skip_special is 2");
  REFUSED(rt_tokenizer_decode(tokenizer, NULL, 3, 0, text, 8, &required), RT_INVALID_ARGUMENT,
          "tokens is NULL");
}

static void test_cancel(void) {
  static char text[200000];
  rt_encode_options options;
  rt_cancel* cancel = NULL;
  uint64_t required = 0;
  memset(text, 'a', sizeof text);
  OK(rt_cancel_create(&cancel));
  OK(rt_encode_options_init(&options, sizeof options));
  options.cancel = cancel;
  OK(rt_tokenizer_encode(tokenizer, text, sizeof text, &options, NULL, 0, &required));
  CHECK(required == sizeof text);
  rt_cancel_set(cancel);
  REFUSED(rt_tokenizer_encode(tokenizer, text, sizeof text, &options, NULL, 0, &required), RT_CANCELLED,
          "cancelled");
  rt_cancel_reset(cancel);
  OK(rt_tokenizer_encode(tokenizer, text, sizeof text, &options, NULL, 0, &required));
  options.cancel = (const rt_cancel*)tokenizer;
  REFUSED(rt_tokenizer_encode(tokenizer, text, 1, &options, NULL, 0, &required), RT_INVALID_ARGUMENT,
          "options.cancel is not a live cancel handle");
  rt_cancel_release(cancel);
}

static void test_queries(void) {
  rt_tokenizer_info info;
  uint32_t token = 0, special = 9;
  uint64_t required = 9;
  info.struct_size = sizeof info;
  OK(rt_tokenizer_get_info(tokenizer, &info));
  CHECK(info.kind == RT_TOKENIZER_BYTE && info.vocabulary_size == 256 && info.adds_bos == 0 &&
        info.reserved == 0);
  CHECK(info.bos_token == RT_NO_TOKEN && info.eos_token == RT_NO_TOKEN);
  OK(rt_tokenizer_find(tokenizer, "a", 1, &token));
  CHECK(token == 'a');
  OK(rt_tokenizer_find(tokenizer, "ab", 2, &token));
  CHECK(token == RT_NO_TOKEN);
  REFUSED(rt_tokenizer_find(tokenizer, "a", 1, NULL), RT_INVALID_ARGUMENT, "token is NULL");
  OK(rt_tokenizer_is_special(tokenizer, 255, &special));
  CHECK(special == 0);
  REFUSED(rt_tokenizer_is_special(tokenizer, 256, &special), RT_OUT_OF_RANGE, "256");
  REFUSED(rt_tokenizer_is_special(tokenizer, 1, NULL), RT_INVALID_ARGUMENT, "special is NULL");
  OK(rt_tokenizer_special_tokens(tokenizer, NULL, 0, &required));
  CHECK(required == 0);
  REFUSED(rt_tokenizer_special_tokens(tokenizer, NULL, 1, &required), RT_INVALID_ARGUMENT, "tokens is NULL");
  REFUSED(rt_tokenizer_special_tokens(NULL, NULL, 0, &required), RT_INVALID_ARGUMENT, "tokenizer is NULL");
  OK(rt_tokenizer_chat_template(tokenizer, NULL, 0, &required));
  CHECK(required == 0);
  REFUSED(rt_tokenizer_chat_template(tokenizer, NULL, 1, &required), RT_INVALID_ARGUMENT, "text is NULL");
  REFUSED(rt_tokenizer_chat_template(NULL, NULL, 0, &required), RT_INVALID_ARGUMENT, "tokenizer is NULL");
  REFUSED(rt_tokenizer_save(tokenizer, "x", 1), RT_UNSUPPORTED, "byte tokenizer");
  REFUSED(rt_tokenizer_save(NULL, "x", 1), RT_INVALID_ARGUMENT, "tokenizer is NULL");
}

static uint64_t last_done, last_total;
static void RT_CALL on_progress(void* user_data, uint64_t done, uint64_t total) {
  CHECK(done >= last_done && done <= total);
  last_done = done;
  last_total = total;
  if (user_data) rt_cancel_set(user_data);
}

static void test_train(void) {
  const rt_text texts[2] = {{"hug hug hug hugs", 16}, {"pug", 3}};
  const rt_text special[2] = {{"<end>", 5}, {"<end>", 5}};
  rt_tokenizer_train_options options;
  rt_tokenizer_info info;
  rt_tokenizer* trained = NULL;
  rt_cancel* cancel = NULL;
  uint32_t token = 9, ids[4];
  uint64_t required = 0;
  OK(rt_tokenizer_train_options_init(&options, sizeof options));
  CHECK(options.vocabulary_size == 8192 && options.pre_tokenizer == RT_PRE_TOKENIZER_GPT2);
  options.vocabulary_size = 259;
  options.special_tokens = special;
  options.special_token_count = 1;
  options.progress = on_progress;
  OK(rt_tokenizer_train(texts, 2, &options, &trained));
  CHECK(last_total == 38 && last_done == 38);
  OK(rt_tokenizer_find(trained, "<end>", 5, &token));
  CHECK(token == 0);
  info.struct_size = sizeof info;
  OK(rt_tokenizer_get_info(trained, &info));
  CHECK(info.eos_token == RT_NO_TOKEN && options.eos_token == RT_NO_TOKEN);
  OK(rt_tokenizer_encode(trained, "hug", 3, NULL, ids, 4, &required)); /* "ug" comes first, then "hug" */
  CHECK(required == 1 && ids[0] == 258);
  rt_tokenizer_release(trained);
  last_done = 0;
  options.eos_token = 0;
  OK(rt_tokenizer_train(texts, 2, &options, &trained));
  OK(rt_tokenizer_get_info(trained, &info));
  CHECK(info.eos_token == 0);
  rt_tokenizer_release(trained);

  trained = tokenizer;
  options.progress = NULL;
  options.eos_token = 1;
  REFUSED(rt_tokenizer_train(texts, 2, &options, &trained), RT_OUT_OF_RANGE,
          "the end token 1 is none of the 1");
  options.eos_token = RT_NO_TOKEN;
  options.special_token_count = 2;
  REFUSED(rt_tokenizer_train(texts, 2, &options, &trained), RT_INVALID_ARGUMENT, "\"<end>\" is there twice");
  CHECK(trained == NULL);
  options.special_token_count = 1;
  options.vocabulary_size = 256;
  REFUSED(rt_tokenizer_train(texts, 2, &options, &trained), RT_OUT_OF_RANGE, "vocabulary_size of 256; 257");
  options.vocabulary_size = 300;
  options.pre_tokenizer = 4;
  REFUSED(rt_tokenizer_train(texts, 2, &options, &trained), RT_INVALID_ARGUMENT,
          "options.pre_tokenizer is 4");
  options.pre_tokenizer = 0;
  REFUSED(rt_tokenizer_train(NULL, 2, &options, &trained), RT_INVALID_ARGUMENT, "texts is NULL");
  REFUSED(rt_tokenizer_train(texts, 2, &options, NULL), RT_INVALID_ARGUMENT, "tokenizer is NULL");
  OK(rt_cancel_create(&cancel));
  options.cancel = cancel;
  options.progress = on_progress;
  options.progress_user_data = cancel;
  last_done = 0;
  REFUSED(rt_tokenizer_train(texts, 2, &options, &trained), RT_CANCELLED, "training");
  rt_cancel_release(cancel);
}

static void test_load(void) {
  char path[512];
  rt_tokenizer* loaded = tokenizer;
  FILE* file;
  REFUSED(rt_tokenizer_create_byte(NULL), RT_INVALID_ARGUMENT, "tokenizer is NULL");
  REFUSED(rt_tokenizer_load("/nowhere/tokenizer.json", 23, &loaded), RT_INPUT_OUTPUT,
          "/nowhere/tokenizer.json");
  CHECK(loaded == NULL);
  REFUSED(rt_tokenizer_load(NULL, 3, &loaded), RT_INVALID_ARGUMENT, "path is NULL");
  snprintf(path, sizeof path, "%s/tokenizer.json", check_scratch);
  file = fopen(path, "w");
  CHECK(file != NULL && fputs("{\"model\": 1", file) >= 0);
  if (file != NULL) fclose(file);
  REFUSED(rt_tokenizer_load(path, strlen(path), &loaded), RT_CORRUPT_DATA, "tokenizer.json");
}

static void test_stream_decoder(void) {
  rt_stream_decoder* decoder = NULL;
  const char* text = NULL;
  uint64_t size = 99;
  REFUSED(rt_stream_decoder_create(NULL, 0, &decoder), RT_INVALID_ARGUMENT, "tokenizer is NULL");
  REFUSED(rt_stream_decoder_create(tokenizer, 0, NULL), RT_INVALID_ARGUMENT, "decoder is NULL");
  REFUSED(rt_stream_decoder_create(tokenizer, 2, &decoder), RT_INVALID_ARGUMENT, "skip_special is 2");
  OK(rt_stream_decoder_create(tokenizer, 0, &decoder));
  OK(rt_stream_decoder_push(decoder, 0xC3, &text, &size));
  CHECK(size == 0);
  REFUSED(rt_stream_decoder_push(decoder, 256, &text, &size), RT_OUT_OF_RANGE, "256");
  REFUSED(rt_stream_decoder_push(decoder, 'a', NULL, &size), RT_INVALID_ARGUMENT, "text is NULL");
  REFUSED(rt_stream_decoder_push(decoder, 'a', &text, NULL), RT_INVALID_ARGUMENT, "text_size is NULL");
  REFUSED(rt_stream_decoder_push(NULL, 'a', &text, &size), RT_INVALID_ARGUMENT, "decoder is NULL");
  OK(rt_stream_decoder_push(decoder, 0xA9, &text, &size)); /* completes what was held back */
  CHECK(size == 2 && memcmp(text, "\xC3\xA9", 2) == 0);
  OK(rt_stream_decoder_push(decoder, 0xE2, &text, &size));
  REFUSED(rt_stream_decoder_flush(decoder, NULL, &size), RT_INVALID_ARGUMENT, "text is NULL");
  REFUSED(rt_stream_decoder_flush(NULL, &text, &size), RT_INVALID_ARGUMENT, "decoder is NULL");
  OK(rt_stream_decoder_flush(decoder, &text, &size));
  CHECK(size == 1 && text[0] == '\xE2');
  OK(rt_stream_decoder_flush(decoder, &text, &size));
  CHECK(size == 0);
  rt_tokenizer_release(tokenizer); /* the decoder keeps what it needs */
  OK(rt_stream_decoder_push(decoder, 'z', &text, &size));
  CHECK(size == 1 && text[0] == 'z');
  rt_stream_decoder_release(decoder);
  rt_stream_decoder_release(NULL);
  rt_tokenizer_release(NULL);
}

int main(int argc, char** argv) {
  check_begin(argc, argv);
  OK(rt_tokenizer_create_byte(&tokenizer));
  test_encode_and_decode();
  test_cancel();
  test_queries();
  test_load();
  test_train();
  test_stream_decoder();
  return check_end();
}
