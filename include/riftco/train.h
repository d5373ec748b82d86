/* Training: the parameters that a model serves, trained whole or through low-rank adapters. */
#ifndef RIFTCO_TRAIN_H
#define RIFTCO_TRAIN_H

#include "riftco/base.h"
#include "riftco/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* While decode sessions of a model are alive (a running generation is one), every call here that changes its
 * parameters is RT_INVALID_STATE and says how many. Sessions made after a change see the new parameters. */

/* --- low-rank adapters (LoRA, Hu and others 2021) ------------------------------------------------------------------- */

/* Matrices that can have an adapter. */
enum {
  RT_LORA_Q = 1,
  RT_LORA_K = 2,
  RT_LORA_V = 4,
  RT_LORA_O = 8,
  RT_LORA_UP = 16, /* the expanding matrix of the MLP */
  RT_LORA_GATE = 32,
  RT_LORA_DOWN = 64, /* the projecting matrix of the MLP */
  RT_LORA_HEAD = 128
};

typedef struct rt_lora_options {
  uint64_t struct_size;
  uint32_t rank;    /* default 8; at most the smaller side of every target */
  uint32_t targets; /* RT_LORA_* or-ed; default Q | V. GATE needs a gated model */
  double alpha;     /* y = W x + (alpha / rank) B (A x); default 16 */
  uint64_t seed;    /* of A: normal, deviation 1 / sqrt(rank); B is zero */
} rt_lora_options;

RT_API rt_status RT_CALL rt_lora_options_init(rt_lora_options* options, uint64_t size);

/* Adapters on a model of any element type; its outputs stay as they are until B is trained. They are parameters of
 * the model, behind its own: "layers.0.q.lora_a" [rank, inputs], "layers.0.q.lora_b" [outputs, rank], float32.
 * RT_INVALID_STATE where it has adapters already. */
RT_API rt_status RT_CALL rt_model_attach_lora(rt_model* model, const rt_lora_options* options);

/* Removes the adapters; the model is as it was before them. */
RT_API rt_status RT_CALL rt_model_detach_lora(rt_model* model);

/* Adds the adapters to the matrices and removes them. f16 and bf16 matrices become f32; a model with quantised targets
 * is RT_UNSUPPORTED (convert it to a float type first). */
RT_API rt_status RT_CALL rt_model_merge_lora(rt_model* model);

/* What is attached; RT_INVALID_STATE where nothing is. The seed of adapters from a file is 0. */
RT_API rt_status RT_CALL rt_model_get_lora(const rt_model* model, rt_lora_options* options);

#ifdef __cplusplus
}
#endif

#endif /* RIFTCO_TRAIN_H */
