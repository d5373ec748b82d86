/* Generation: prompt in, then pull pieces of text.
 *
 *   rt_generator_start(g, prompt, size, &options);
 *   do {
 *     rt_generator_next(g, &piece);
 *     fwrite(piece.bytes, 1, piece.size, out);
 *   } while (piece.finish == RT_FINISH_NONE);
 */
#ifndef RIFTCO_GENERATE_H
#define RIFTCO_GENERATE_H

#include "riftco/base.h"
#include "riftco/model.h"
#include "riftco/session.h"
#include "riftco/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rt_generator rt_generator;

/* What happens when the context is full and another token is wanted. */
enum {
  RT_ROLLOVER_DEFAULT = 0, /* window for learned positions, stop for rotary ones */
  RT_ROLLOVER_WINDOW = 1,  /* replay the newest maximum_context tokens from position 0 */
  RT_ROLLOVER_KEEP = 2,    /* replay the newest rollover_keep tokens from position 0 */
  RT_ROLLOVER_STOP = 3     /* finish with RT_FINISH_LENGTH; a prompt that is too long is refused */
};

enum {
  RT_FINISH_NONE = 0,  /* not finished: another piece follows */
  RT_FINISH_EOS = 1,   /* an end-of-generation token */
  RT_FINISH_STOP = 2,  /* a stop string or stop token */
  RT_FINISH_LENGTH = 3 /* max_new_tokens, or the context is full under RT_ROLLOVER_STOP */
};

typedef struct rt_logit_bias {
  uint32_t token;
  float bias; /* added to the token's logit; -INFINITY bars it */
} rt_logit_bias;

enum { RT_MAX_ALTERNATIVES = 64, RT_MAX_SPECULATION = 64 };

/* How a token is chosen, in this order:
 *   1. the model's logits, or what a hook made of them (rt_generator_logits): the raw row
 *   2. logit_bias is added
 *   3. before min_new_tokens, end-of-generation and stop tokens are barred
 *   4. repetition_penalty, for every token of the prompt and the new text: a logit above 0 is divided by it, another one
 *      multiplied; then frequency_penalty times how often a token is in the new text, and presence_penalty once where it
 *      is, are taken off
 *   5. the temperature: logits are divided by it. 0: the most likely token, and nothing below is used
 *   6. top_k, top_p, min_p, each among the tokens that the one before kept
 *   7. one draw */
typedef struct rt_generation_options {
  uint64_t struct_size;
  uint64_t max_new_tokens;     /* default 256 */
  uint64_t seed;               /* default 0; the same seed gives the same tokens, whatever else runs */
  float temperature;           /* default 0: greedy; then the filters below are not used */
  float top_p;                 /* (0, 1]; default 1: off */
  float min_p;                 /* [0, 1]; default 0: off */
  uint32_t top_k;              /* default 0: off */
  uint32_t ignore_eos;         /* 1: end-of-generation tokens are ordinary. Default 0 */
  uint32_t parse_special;      /* 1: special tokens in the prompt's text are read as such. Default 0 */
  int32_t rollover;            /* RT_ROLLOVER_* */
  uint32_t rollover_keep;      /* tokens, 1 .. maximum_context - 1, with RT_ROLLOVER_KEEP; else 0 */
  const rt_text* stop_strings; /* none of them appears in the pieces; copied by start */
  uint64_t stop_string_count;
  const uint32_t* stop_tokens; /* copied by start */
  uint64_t stop_token_count;
  const rt_cancel* cancel;  /* or NULL; looked at by start and next; alive until the generation has ended */
  uint64_t min_new_tokens;  /* at most max_new_tokens. Default 0 */
  float repetition_penalty; /* above 0; default 1: off */
  float presence_penalty;   /* default 0: off */
  float frequency_penalty;  /* default 0: off */
  uint32_t penalty_window;  /* the penalties look at this many newest tokens; default 0: all */
  const rt_logit_bias* logit_bias; /* copied by start; a token that is there twice gets both */
  uint64_t logit_bias_count;
  uint32_t
      alternatives; /* most likely tokens to tell with each piece, up to RT_MAX_ALTERNATIVES; default 0 */
  uint32_t
      speculation; /* tokens guessed ahead and checked in one step, up to RT_MAX_SPECULATION: a guess is what
                           followed the same tokens earlier in prompt and text. It changes the speed only: tokens,
                           probabilities, text and pieces are the same. Default 0: off */
} rt_generation_options;

RT_API rt_status RT_CALL rt_generation_options_init(rt_generation_options* options, uint64_t size);

/* factory may be NULL: a paged cache of one full context. tokenizer may be NULL: the model's. */
RT_API rt_status RT_CALL rt_generator_create(const rt_model* model, const rt_tokenizer* tokenizer,
                                             rt_kv_cache_factory* factory, rt_generator** generator);

/* Begins a generation: encodes the prompt (with the BOS token where the file says so) and prefills it. A
 * generation that was running is dropped. Pages of an earlier call are used again as far as both begin with
 * the same tokens. On failure (also RT_CANCELLED) no generation is running. An empty prompt of a model
 * without BOS is RT_INVALID_ARGUMENT. */
RT_API rt_status RT_CALL rt_generator_start(rt_generator* generator, const char* prompt, uint64_t prompt_size,
                                            const rt_generation_options* options);

/* The same from token ids, taken as they are. */
RT_API rt_status RT_CALL rt_generator_start_tokens(rt_generator* generator, const uint32_t* tokens,
                                                   uint64_t token_count,
                                                   const rt_generation_options* options);

/* A second generator that goes on from the same point of the running generation: n choices for one prompt, which is
 * prefilled once. Pages are shared until one of them writes. `choice` names the stream of random numbers that the fork
 * draws from under the seed; a generation that was started has choice 0. So choice i is the same whatever else is
 * forked. The fork looks at the same cancel flag. RT_INVALID_STATE when no generation is running. */
RT_API rt_status RT_CALL rt_generator_fork(const rt_generator* generator, uint64_t choice,
                                           rt_generator** fork);

/* Ends the running generation, if there is one: the model counts one session less. The pages are kept for the next start,
 * as after a generation's end. */
RT_API rt_status RT_CALL rt_generator_stop(rt_generator* generator);

/* The raw distribution is softmax of the raw row (step 1 above). The processed one is what the token was drawn from: after
 * step 6; with temperature 0, softmax of the row after step 4. */
typedef struct rt_token_probability {
  uint32_t token;
  float log_probability;           /* under the raw distribution */
  float processed_log_probability; /* under the processed one; -INFINITY: it could not be drawn */
} rt_token_probability;

typedef struct rt_generation_piece {
  uint64_t struct_size;
  const char* bytes; /* text that became certain, whole UTF-8 characters where the model's output is; maybe
                        empty. Valid until the generator's next call */
  uint64_t size;
  uint32_t token;        /* the token that was sampled, or RT_NO_TOKEN in a last piece without one */
  int32_t finish;        /* RT_FINISH_* */
  float log_probability; /* of that token under the raw distribution; 0 without a token */
  float processed_log_probability; /* under the processed one */
  const rt_token_probability*
      alternatives; /* the most likely tokens under the raw distribution, best first, as many as
                                               were asked for. Valid until the generator's next call */
  uint64_t alternative_count;
} rt_generation_piece;

/* Samples one token and gives the text that became certain with it. After the piece whose finish is not
 * RT_FINISH_NONE, or before start, RT_INVALID_STATE. A failure (also RT_CANCELLED) loses nothing: the next
 * call goes on. */
RT_API rt_status RT_CALL rt_generator_next(rt_generator* generator, rt_generation_piece* piece);

/* The raw row that the next call will choose from, [*count] = vocabulary_size, writable: a logits hook. Valid
 * until the generator's next call. RT_INVALID_STATE when no generation is running. */
RT_API rt_status RT_CALL rt_generator_logits(rt_generator* generator, float** logits, uint64_t* count);

typedef struct rt_generation_stats {
  uint64_t struct_size;
  uint64_t prompt_tokens; /* of the prompt as given */
  uint64_t reused_tokens; /* of them already in the cache */
  uint64_t new_tokens;    /* sampled so far */
  uint64_t rollovers;
  double prefill_seconds;   /* computing the prompt tokens that were not reused */
  double decode_seconds;    /* all steps after it, replays included */
  uint64_t drafted_tokens;  /* guessed and computed ahead by speculation */
  uint64_t accepted_tokens; /* of them those that were then sampled */
} rt_generation_stats;

RT_API rt_status RT_CALL rt_generator_get_stats(const rt_generator* generator, rt_generation_stats* stats);

RT_API void RT_CALL rt_generator_release(rt_generator* generator);

#ifdef __cplusplus
}
#endif

#endif /* RIFTCO_GENERATE_H */
