/* Decode sessions: one sequence, token by token, over a transactional key/value cache. */
#ifndef RIFTCO_SESSION_H
#define RIFTCO_SESSION_H

#include "riftco/base.h"
#include "riftco/model.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { RT_KV_CACHE_CONTIGUOUS = 0, RT_KV_CACHE_PAGED = 1 };

/* What keys and values are kept as. F16 and BF16 halve the memory: values are rounded to nearest even when they are
 * written, and one that overflows is RT_NON_FINITE. */
enum { RT_KV_ELEMENT_F32 = 0, RT_KV_ELEMENT_F16 = 1, RT_KV_ELEMENT_BF16 = 2 };

/* --- key/value cache factories --------------------------------------------------------------------------------------- */

/* Where caches come from: a paged pool shared by any number of sessions and generators, or contiguous caches
 * of one page of the maximum context each. Thread-safe. */
typedef struct rt_kv_cache_factory rt_kv_cache_factory;

typedef struct rt_kv_cache_factory_options {
  uint64_t struct_size;
  int32_t kind;         /* RT_KV_CACHE_*; default paged */
  int32_t element_type; /* RT_KV_ELEMENT_*; default F32 */
  uint64_t block_size;  /* tokens per page; default 16; contiguous: left at it, 0 or the maximum context */
  uint64_t block_count; /* pages of the pool; 0 (default): one full context. Contiguous: 0 */
  uint64_t maximum_context; /* longest sequence; 0 (default): the model's */
  uint64_t memory_limit;    /* bytes of pages; 0 (default): none. A page beyond it is RT_OUT_OF_MEMORY */
} rt_kv_cache_factory_options;

RT_API rt_status RT_CALL rt_kv_cache_factory_options_init(rt_kv_cache_factory_options* options,
                                                          uint64_t size);

/* For models of this model's geometry (back end, layers, key/value heads, head width). */
RT_API rt_status RT_CALL rt_kv_cache_factory_create(const rt_model* model,
                                                    const rt_kv_cache_factory_options* options,
                                                    rt_kv_cache_factory** factory);

typedef struct rt_kv_cache_usage {
  uint64_t struct_size;
  uint64_t block_size;      /* tokens per page */
  uint64_t block_count;     /* pages in all; contiguous: pages that exist now */
  uint64_t free_count;      /* pages that no cache holds */
  uint64_t allocated_bytes; /* memory of the pages that were ever leased */
  uint64_t block_bytes;     /* memory of one page */
} rt_kv_cache_usage;

RT_API rt_status RT_CALL rt_kv_cache_factory_get_usage(const rt_kv_cache_factory* factory,
                                                       rt_kv_cache_usage* usage);
RT_API void RT_CALL rt_kv_cache_factory_release(rt_kv_cache_factory* factory);

/* --- sessions -------------------------------------------------------------------------------------------------------- */

typedef struct rt_decode_session rt_decode_session;

typedef struct rt_decode_session_options {
  uint64_t struct_size;
  int32_t kind;                 /* RT_KV_CACHE_*; default paged */
  int32_t element_type;         /* RT_KV_ELEMENT_*; default F32 */
  uint64_t block_size;          /* tokens per page; default 16 */
  uint64_t maximum_context;     /* 0 (default): the model's */
  rt_kv_cache_factory* factory; /* NULL (default): a factory of the session's own for one full context; else
                                   kind, element_type and block_size must be the factory's or left at
                                   their defaults, maximum_context 0 or at most its */
  const rt_cancel* cancel;      /* looked at by every step of the session; or NULL */
} rt_decode_session_options;

RT_API rt_status RT_CALL rt_decode_session_options_init(rt_decode_session_options* options, uint64_t size);

RT_API rt_status RT_CALL rt_model_decode_session_create(const rt_model* model,
                                                        const rt_decode_session_options* options,
                                                        rt_decode_session** session);

/* Decodes one token at position size(). logits: [vocabulary_size] of the next token; capacity (floats) must
 * be large enough and required not NULL. RT_CONTEXT_FULL, RT_CACHE_EXHAUSTED, RT_CANCELLED, RT_NON_FINITE:
 * nothing was changed. */
RT_API rt_status RT_CALL rt_decode_session_step(rt_decode_session* session, uint32_t token, float* logits,
                                                uint64_t capacity, uint64_t* required);

/* Decodes token_count >= 1 tokens, all or none; logits [vocabulary_size] are those after the last. */
RT_API rt_status RT_CALL rt_decode_session_prefill(rt_decode_session* session, const uint32_t* tokens,
                                                   uint64_t token_count, float* logits, uint64_t capacity,
                                                   uint64_t* required);

/* Decodes token_count >= 1 tokens as prefill does, and gives the final hidden states (what the head reads: after the final
 * norm) of the tokens from first_row on, first_row < token_count: states [token_count - first_row, width]. */
RT_API rt_status RT_CALL rt_decode_session_hidden_states(rt_decode_session* session, const uint32_t* tokens,
                                                         uint64_t token_count, uint64_t first_row,
                                                         float* states, uint64_t capacity,
                                                         uint64_t* required);

/* One token for each of count different sessions of one model as one batch, all or none; logits [count,
 * vocabulary_size]. */
RT_API rt_status RT_CALL rt_decode_session_step_many(rt_decode_session* const* sessions,
                                                     const uint32_t* tokens, uint64_t count, float* logits,
                                                     uint64_t capacity, uint64_t* required);

/* Back to an empty sequence; returns all pages. */
RT_API rt_status RT_CALL rt_decode_session_reset(rt_decode_session* session);

/* Forgets all but the first new_size tokens; more than size() is RT_OUT_OF_RANGE. */
RT_API rt_status RT_CALL rt_decode_session_truncate(rt_decode_session* session, uint64_t new_size);

/* A second session with the same tokens; pages are shared until one of them writes. */
RT_API rt_status RT_CALL rt_decode_session_fork(const rt_decode_session* session, rt_decode_session** fork);

/* Writes the session to a file, whole or not at all: keys and values in logical order, for any page size, kind of cache and
 * machine whose library has the same kernel contract. Neither tokens nor logits are in it. The first call for a model
 * computes a checksum of its weights. */
RT_API rt_status RT_CALL rt_decode_session_save(const rt_decode_session* session, const char* path,
                                                uint64_t path_size);

/* A new session with what rt_decode_session_save wrote; it goes on with the bits of the saved one. options as for a new
 * session, the element type the file's or left at its default. RT_CORRUPT_DATA (also a value that is not finite),
 * RT_VERSION_MISMATCH (a newer format, another kernel contract), RT_INVALID_ARGUMENT (another model, another element type),
 * RT_CONTEXT_FULL, RT_CACHE_EXHAUSTED. */
RT_API rt_status RT_CALL rt_model_decode_session_load(const rt_model* model, const char* path,
                                                      uint64_t path_size,
                                                      const rt_decode_session_options* options,
                                                      rt_decode_session** session);

RT_API rt_status RT_CALL rt_decode_session_size(const rt_decode_session* session, uint64_t* size);
RT_API rt_status RT_CALL rt_decode_session_capacity(const rt_decode_session* session, uint64_t* capacity);
RT_API rt_status RT_CALL rt_decode_session_cache_kind(const rt_decode_session* session, int32_t* kind);
RT_API rt_status RT_CALL rt_decode_session_block_size(const rt_decode_session* session, uint64_t* block_size);

typedef struct rt_decode_session_usage {
  uint64_t struct_size;
  uint64_t block_count;  /* pages that the session holds */
  uint64_t shared_count; /* of them held by other sessions or generators too */
  uint64_t bytes;        /* memory of all of them */
} rt_decode_session_usage;

RT_API rt_status RT_CALL rt_decode_session_get_usage(const rt_decode_session* session,
                                                     rt_decode_session_usage* usage);

RT_API void RT_CALL rt_decode_session_release(rt_decode_session* session);

#ifdef __cplusplus
}
#endif

#endif /* RIFTCO_SESSION_H */
