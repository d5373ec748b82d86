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

/* The adapters alone, as a folder of adapter_model.safetensors and adapter_config.json with PEFT's names
 * (models with the Llama family's layout), or as one .safetensors file with native names (all models; the
 * path's suffix says it). */
RT_API rt_status RT_CALL rt_model_save_lora(const rt_model* model, const char* path, uint64_t path_size);

/* Attaches adapters from such a file or folder; PEFT's fused c_attn of GPT-2 is read too. */
RT_API rt_status RT_CALL rt_model_load_lora(rt_model* model, const char* path, uint64_t path_size);

/* --- batches --------------------------------------------------------------------------------------------------------- */

#define RT_NO_TARGET 0xFFFFFFFFu /* a position that does not count: a prompt's, padding */

typedef struct rt_training_batch {
  uint64_t struct_size;
  const uint32_t* tokens;  /* [sequences, length] */
  const uint32_t* targets; /* [sequences, length]: what each position is to predict, or RT_NO_TARGET; one at
                              least counts */
  uint64_t sequences;
  uint64_t length;         /* at most the model's maximum context */
  const rt_cancel* cancel; /* or NULL; looked at per layer */
} rt_training_batch;

/* FLASH keeps row statistics of attention, MATERIALIZED keeps [sequences, heads, length, length] probabilities;
 * both compute the same. SERVING is the inference kernels' (int8 activations on quantised weights, inputs
 * rounded to bf16 where the model computes so). */
enum { RT_ATTENTION_FLASH = 0, RT_ATTENTION_MATERIALIZED = 1, RT_ATTENTION_SERVING = 2 };

/* Mean cross-entropy (nats) over the counted targets of a batch. Changes nothing; sessions may be alive.
 * target_count may be NULL. */
RT_API rt_status RT_CALL rt_model_evaluate(const rt_model* model, const rt_training_batch* batch,
                                           int32_t attention, double* loss, uint64_t* target_count);

/* --- trainers -------------------------------------------------------------------------------------------------------- */

/* AdamW (Loshchilov and Hutter 2019) over the adapters where the model has some, else over all parameters. */
typedef struct rt_trainer rt_trainer;

enum { RT_SCHEDULE_CONSTANT = 0, RT_SCHEDULE_LINEAR = 1, RT_SCHEDULE_COSINE = 2 };

typedef struct rt_trainer_options {
  uint64_t struct_size;
  double learning_rate; /* after the warm-up; default 3e-4 */
  double beta1;         /* 0.9 */
  double beta2;         /* 0.999 */
  double epsilon;       /* 1e-8 */
  double weight_decay;  /* decoupled; 0.01. Not on biases, norms and embeddings (a tied head is one) */
  double maximum_gradient_norm; /* of all gradients together; 1. 0: no clipping */
  int32_t schedule;             /* RT_SCHEDULE_*; default constant */
  int32_t attention;            /* RT_ATTENTION_FLASH (default) or RT_ATTENTION_MATERIALIZED */
  uint64_t warmup_steps;        /* the rate rises linearly over these; 0 */
  uint64_t total_steps;         /* updates until linear and cosine are at final_rate; constant: 0 */
  double final_rate;            /* as a share of learning_rate; 0 */
  uint64_t micro_batch;         /* sequences worked on at a time, gradients accumulate; 0 (default): all */
  uint32_t recompute;           /* 1: keep only what enters a block and compute its inside again: less memory,
                                   the same bits, a third more time. Default 0 */
  uint32_t reserved;            /* 0 */
} rt_trainer_options;

RT_API rt_status RT_CALL rt_trainer_options_init(rt_trainer_options* options, uint64_t size);

/* A trainer of all parameters makes f16 and bf16 matrices f32 first; a model with quantised matrices and no adapters
 * is RT_UNSUPPORTED (attach adapters, or convert it to a float type). The trainer keeps the model alive. */
RT_API rt_status RT_CALL rt_trainer_create(rt_model* model, const rt_trainer_options* options,
                                           rt_trainer** trainer);

typedef struct rt_training_metrics {
  uint64_t struct_size;
  double loss;           /* mean over the counted targets, before the update, nats */
  double gradient_norm;  /* before clipping */
  double learning_rate;  /* of this update */
  uint64_t target_count; /* that counted */
  uint64_t step;         /* updates made, this one included */
} rt_training_metrics;

/* Loss, gradients and one update: all or nothing. RT_NON_FINITE: the loss or a gradient is not finite (the message
 * names the first such parameter), and nothing was changed. RT_INVALID_STATE also where adapters were attached,
 * detached or merged since the trainer was made, here and in the calls below. metrics may be NULL. */
RT_API rt_status RT_CALL rt_trainer_step(rt_trainer* trainer, const rt_training_batch* batch,
                                         rt_training_metrics* metrics);

/* The gradient of a trained parameter in the last step, before clipping, as rt_model_read_parameter gives values.
 * RT_INVALID_STATE before the first step and after a step or a load that failed. */
RT_API rt_status RT_CALL rt_trainer_read_gradient(const rt_trainer* trainer, const char* name,
                                                  uint64_t name_size, float* values, uint64_t capacity,
                                                  uint64_t* required);

typedef struct rt_trainer_info {
  uint64_t struct_size;
  uint64_t step;             /* updates made */
  uint64_t trained_count;    /* elements of the trained parameters */
  uint64_t optimizer_bytes;  /* gradients and moments */
  uint64_t activation_bytes; /* kept and scratch memory, of the largest batch so far */
} rt_trainer_info;

RT_API rt_status RT_CALL rt_trainer_get_info(const rt_trainer* trainer, rt_trainer_info* info);

/* A checkpoint: what is trained (parameters or adapters), both moments, the step, and `state`, a text of the caller's
 * (random state, position in the data). A safetensors file, complete or not at all; cancel may be NULL. */
RT_API rt_status RT_CALL rt_trainer_save(const rt_trainer* trainer, const char* path, uint64_t path_size,
                                         const char* state, uint64_t state_size, const rt_cancel* cancel);

/* Goes on from a checkpoint of a trainer of the same parameters: steps after it give the bits of a run that was not
 * stopped, on any instruction set and number of threads. The options are this trainer's. */
RT_API rt_status RT_CALL rt_trainer_load(rt_trainer* trainer, const char* path, uint64_t path_size,
                                         const rt_cancel* cancel);

/* The caller's text in a checkpoint. capacity and *required count bytes. */
RT_API rt_status RT_CALL rt_checkpoint_state(const char* path, uint64_t path_size, char* state,
                                             uint64_t capacity, uint64_t* required);

RT_API void RT_CALL rt_trainer_release(rt_trainer* trainer);

#ifdef __cplusplus
}
#endif

#endif /* RIFTCO_TRAIN_H */
