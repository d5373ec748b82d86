/* Tokenizers: text to token ids and back. Immutable; any number of threads may use one. */
#ifndef RIFTCO_TOKENIZER_H
#define RIFTCO_TOKENIZER_H

#include "riftco/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rt_tokenizer rt_tokenizer;

enum { RT_TOKENIZER_BYTE = 0, RT_TOKENIZER_BPE = 1, RT_TOKENIZER_SENTENCEPIECE = 2 };

#define RT_NO_TOKEN 4294967295u /* "there is no such token" */

typedef struct rt_tokenizer_info {
  uint64_t struct_size;
  int32_t kind;             /* RT_TOKENIZER_* */
  uint32_t vocabulary_size; /* ids are below this */
  uint32_t bos_token;       /* or RT_NO_TOKEN */
  uint32_t eos_token;       /* the first end-of-generation token, or RT_NO_TOKEN */
  uint32_t adds_bos;        /* 1 when the file says that prompts begin with the BOS token */
  uint32_t reserved;
} rt_tokenizer_info;

typedef struct rt_byte_range {
  uint64_t begin;
  uint64_t end;
} rt_byte_range;

typedef struct rt_encode_options {
  uint64_t struct_size;
  uint32_t add_special;   /* 1: add the tokens that the file says surround a text (BOS, EOS). Default 0 */
  uint32_t parse_special; /* 1: read the text of special tokens in the input as those tokens. Default 0 */
  uint32_t
      strict; /* 1: a byte without any token is RT_INVALID_ARGUMENT instead of being left out. Default 0 */
  uint32_t reserved;
  const rt_cancel* cancel; /* or NULL */
  /* Where parse_special finds nothing, like a user's words within a prompt: bytes [begin, end), in order and
   * apart. Default none */
  const rt_byte_range* plain_ranges;
  uint64_t plain_range_count;
} rt_encode_options;

RT_API rt_status RT_CALL rt_encode_options_init(rt_encode_options* options, uint64_t size);

/* The byte tokenizer: 256 ids, no special token. */
RT_API rt_status RT_CALL rt_tokenizer_create_byte(rt_tokenizer** tokenizer);

/* From a tokenizer.json, a .gguf, a .rift or a folder with a tokenizer.json. */
RT_API rt_status RT_CALL rt_tokenizer_load(const char* path, uint64_t path_size, rt_tokenizer** tokenizer);

RT_API rt_status RT_CALL rt_tokenizer_get_info(const rt_tokenizer* tokenizer, rt_tokenizer_info* info);

/* Text (any bytes) to ids. */
RT_API rt_status RT_CALL rt_tokenizer_encode(const rt_tokenizer* tokenizer, const char* text,
                                             uint64_t text_size, const rt_encode_options* options,
                                             uint32_t* tokens, uint64_t capacity, uint64_t* required);

/* Ids to exact bytes (may be invalid UTF-8 where the ids are). skip_special 1 leaves special tokens out. The
 * space that SentencePiece models put before a text is left out again. */
RT_API rt_status RT_CALL rt_tokenizer_decode(const rt_tokenizer* tokenizer, const uint32_t* tokens,
                                             uint64_t token_count, uint32_t skip_special, char* text,
                                             uint64_t capacity, uint64_t* required);

/* The id whose text is exactly this, special tokens included; RT_NO_TOKEN where there is none. */
RT_API rt_status RT_CALL rt_tokenizer_find(const rt_tokenizer* tokenizer, const char* text,
                                           uint64_t text_size, uint32_t* token);

/* The ids of all special tokens, lowest first. */
RT_API rt_status RT_CALL rt_tokenizer_special_tokens(const rt_tokenizer* tokenizer, uint32_t* tokens,
                                                     uint64_t capacity, uint64_t* required);

/* 1 when the token is a special (control) token. */
RT_API rt_status RT_CALL rt_tokenizer_is_special(const rt_tokenizer* tokenizer, uint32_t token,
                                                 uint32_t* special);

/* The Jinja source of the chat template that the file brings, UTF-8; of size 0 where it has none. */
RT_API rt_status RT_CALL rt_tokenizer_chat_template(const rt_tokenizer* tokenizer, char* text,
                                                    uint64_t capacity, uint64_t* required);

/* Writes a tokenizer.json that rt_tokenizer_load and the `tokenizers` package read; what was at the path is
 * replaced as a whole or not at all. RT_UNSUPPORTED for the byte tokenizer. Scores of a SentencePiece model
 * become merges: equal scores may then join in another order. */
RT_API rt_status RT_CALL rt_tokenizer_save(const rt_tokenizer* tokenizer, const char* path,
                                           uint64_t path_size);

RT_API void RT_CALL rt_tokenizer_release(rt_tokenizer* tokenizer);

/* --- training --------------------------------------------------------------------------------------------------------- */

/* How text is cut into the pieces that no token crosses. */
enum {
  RT_PRE_TOKENIZER_GPT2 = 0,   /* contractions, words, numbers, marks, white space */
  RT_PRE_TOKENIZER_SMOLLM = 1, /* the same, each digit by itself */
  RT_PRE_TOKENIZER_LLAMA3 = 2, /* numbers of at most three digits, words with a leading mark, line ends */
  RT_PRE_TOKENIZER_QWEN2 = 3   /* the same, each digit by itself */
};

typedef struct rt_tokenizer_train_options {
  uint64_t struct_size;
  uint32_t
      vocabulary_size;   /* special tokens and 256 bytes included; fewer come out where the texts have no more
                               pairs. Default 8192 */
  int32_t pre_tokenizer; /* RT_PRE_TOKENIZER_*; default GPT2 */
  uint64_t minimum_count;        /* pairs that come less often do not join. Default 0 */
  const rt_text* special_tokens; /* the first ids, in this order */
  uint64_t special_token_count;
  const rt_cancel* cancel;       /* or NULL */
  rt_progress_callback progress; /* or NULL; bytes, each counted twice */
  void* progress_user_data;
  uint32_t eos_token; /* the id of the special token that ends a text; RT_NO_TOKEN (default): none */
  uint32_t reserved;  /* 0 */
} rt_tokenizer_train_options;

RT_API rt_status RT_CALL rt_tokenizer_train_options_init(rt_tokenizer_train_options* options, uint64_t size);

/* Learns a byte-level BPE tokenizer: the most frequent pair of neighbours joins first, of equals the one with the
 * lowest ids. The same texts give the same tokenizer in any order, and the same merges as the trainer of the
 * `tokenizers` package. Special tokens in the texts count as ordinary text. */
RT_API rt_status RT_CALL rt_tokenizer_train(const rt_text* texts, uint64_t text_count,
                                            const rt_tokenizer_train_options* options,
                                            rt_tokenizer** tokenizer);

/* --- streaming ------------------------------------------------------------------------------------------------------- */

/* Turns a stream of ids into text that never ends inside a UTF-8 character. What it gives, put together, is
 * what rt_tokenizer_decode gives: a SentencePiece model's first space is left out. */
typedef struct rt_stream_decoder rt_stream_decoder;

RT_API rt_status RT_CALL rt_stream_decoder_create(const rt_tokenizer* tokenizer, uint32_t skip_special,
                                                  rt_stream_decoder** decoder);

/* Takes one id. *text points to the bytes that became complete (perhaps none), valid until the next call on
 * the decoder. */
RT_API rt_status RT_CALL rt_stream_decoder_push(rt_stream_decoder* decoder, uint32_t token, const char** text,
                                                uint64_t* text_size);

/* Gives what was held back, complete or not, and starts anew. */
RT_API rt_status RT_CALL rt_stream_decoder_flush(rt_stream_decoder* decoder, const char** text,
                                                 uint64_t* text_size);

RT_API void RT_CALL rt_stream_decoder_release(rt_stream_decoder* decoder);

#ifdef __cplusplus
}
#endif

#endif /* RIFTCO_TOKENIZER_H */
