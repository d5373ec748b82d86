/* Models: parameters and geometry, loaded from a file or made. */
#ifndef RIFTCO_MODEL_H
#define RIFTCO_MODEL_H

#include "riftco/base.h"
#include "riftco/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rt_model rt_model;

/* Element types that matrices can be converted to, when a model is loaded or saved. */
enum {
  RT_TYPE_KEEP = 0, /* as they are */
  RT_TYPE_F32 = 1,
  RT_TYPE_F16 = 2,
  RT_TYPE_BF16 = 3,
  RT_TYPE_Q8_0 = 4, /* blocks of 32 by the GGUF format's rule; not in a Hugging Face folder */
  RT_TYPE_Q4_0 = 5
};

/* How steps multiply with matrices of bf16. EXACT: with the inputs as they are, float32. BF16: with the inputs rounded to
 * bf16, nearest even, the sums as always in float32. That is another result, the same bits on every machine (but numbers
 * below 2^-126 may count as zero), and faster where the processor multiplies bf16 itself (AVX512_BF16); elsewhere nothing
 * is gained. Training is always exact. */
enum { RT_COMPUTE_EXACT = 0, RT_COMPUTE_BF16 = 1 };

typedef struct rt_model_load_options {
  uint64_t struct_size;
  int32_t backend;         /* RT_BACKEND_*; default CPU */
  uint32_t threads;        /* workers, the caller included; 0 (default): the CPUs that the process may use */
  const rt_cancel* cancel; /* or NULL; a cancelled load leaves nothing */
  rt_progress_callback progress; /* or NULL */
  void* progress_user_data;
  uint64_t memory_limit; /* bytes of weights and activations; 0 (default): none. What exceeds it, now or in a
                            session, is RT_OUT_OF_MEMORY */
  int32_t
      type; /* RT_TYPE_*; default keep. Matrices are converted piece by piece as they are read, to the bits
                            that saving with this type and loading gives; norms and biases are float32 in any case */
  int32_t compute; /* RT_COMPUTE_*; default exact. RT_UNSUPPORTED without matrices of bf16 to multiply with */
} rt_model_load_options;

RT_API rt_status RT_CALL rt_model_load_options_init(rt_model_load_options* options, uint64_t size);

/* From a .gguf file, a .rift file or a Hugging Face folder (config.json and model.safetensors). What this
 * release does not compute exactly is RT_UNSUPPORTED, by name. */
RT_API rt_status RT_CALL rt_model_load(const char* path, uint64_t path_size,
                                       const rt_model_load_options* options, rt_model** model);

/* From a .gguf or .rift file that is open for reading. The descriptor stays the caller's; its position is
 * neither used nor moved. */
RT_API rt_status RT_CALL rt_model_load_fd(int32_t descriptor, const rt_model_load_options* options,
                                          rt_model** model);

/* From the bytes of a .gguf or .rift file, which are read during the call only. */
RT_API rt_status RT_CALL rt_model_load_buffer(const void* data, uint64_t size,
                                              const rt_model_load_options* options, rt_model** model);

/* Describes a file that rt_model_load takes without loading its weights, as one JSON document (UTF-8):
 * format, config, tensors (name, type, shape, bytes), tokenizer, metadata, an estimate of the memory.
 * capacity and *required count bytes. */
RT_API rt_status RT_CALL rt_model_inspect(const char* path, uint64_t path_size, char* json, uint64_t capacity,
                                          uint64_t* required);
RT_API rt_status RT_CALL rt_model_inspect_fd(int32_t descriptor, char* json, uint64_t capacity,
                                             uint64_t* required);
RT_API rt_status RT_CALL rt_model_inspect_buffer(const void* data, uint64_t size, char* json,
                                                 uint64_t capacity, uint64_t* required);

enum { RT_POSITION_LEARNED = 0, RT_POSITION_ROTARY = 1 };
/* How rotary frequencies are stretched for contexts longer than the one trained on: all divided by a factor
 * (linear); slow ones only (Llama 3.1, YaRN); each by its own number, which is a parameter (factors). */
enum {
  RT_ROTARY_SCALING_NONE = 0,
  RT_ROTARY_SCALING_LINEAR = 1,
  RT_ROTARY_SCALING_LLAMA3 = 2,
  RT_ROTARY_SCALING_YARN = 3,
  RT_ROTARY_SCALING_FACTORS = 4
};
enum { RT_NORM_LAYER = 0, RT_NORM_RMS = 1 };
enum { RT_ACTIVATION_GELU_ERF = 0, RT_ACTIVATION_GELU_TANH = 1, RT_ACTIVATION_SILU_GATED = 2 };

/* Projections that have a bias. */
enum {
  RT_BIAS_Q = 1,
  RT_BIAS_K = 2,
  RT_BIAS_V = 4,
  RT_BIAS_O = 8,
  RT_BIAS_UP = 16,
  RT_BIAS_GATE = 32,
  RT_BIAS_DOWN = 64,
  RT_BIAS_HEAD = 128,
  RT_BIAS_NORMS = 256
};

typedef struct rt_model_config {
  uint64_t struct_size;
  uint32_t vocabulary_size;
  uint32_t maximum_context; /* positions */
  uint32_t layer_count;
  uint32_t width;
  uint32_t head_count;
  uint32_t kv_head_count; /* divides head_count */
  uint32_t head_width;
  uint32_t mlp_width;
  int32_t position;      /* RT_POSITION_* */
  int32_t norm;          /* RT_NORM_* */
  int32_t activation;    /* RT_ACTIVATION_* */
  uint32_t biases;       /* RT_BIAS_* or-ed */
  uint32_t tied_head;    /* 1: the output head is the token embedding */
  uint32_t rotary_width; /* rotated dims of a head, even; 0 with learned positions */
  double rotary_base;
  double norm_epsilon;
  int32_t rotary_scaling;           /* RT_ROTARY_SCALING_* */
  uint32_t rotary_original_context; /* llama3, yarn: positions trained on; else 0 */
  double rotary_factor;             /* linear, llama3, yarn; else 1 */
  double rotary_slow_rotations; /* llama3, yarn, else 0: over the original context; pairs that turn less */
  double rotary_fast_rotations; /* often than slow are divided by the factor, more often than fast are not */
  double rotary_attention_factor; /* yarn: multiplies cosines and sines; else 1 */
  uint32_t sliding_window;        /* keys that a token sees, its own included; 0: all */
  uint32_t first_window_layer;    /* layers before it see all keys */
  uint32_t qk_norm;               /* 1: rms norm of every head of q and k */
  uint32_t reserved;              /* 0 */
} rt_model_config;

/* The native default family: pre-LN, erf GELU, biases everywhere, untied head, learned positions, epsilon
 * 1e-5; 256 tokens, 256 positions, 4 layers of width 128 with 4 heads, MLP 512. */
RT_API rt_status RT_CALL rt_model_config_init(rt_model_config* config, uint64_t size);

/* A model with random parameters (normal, deviation 0.02; norms one, biases zero), the same for the same seed on
 * every machine; float32 unless options->type says otherwise. `tokenizer` may be NULL. */
RT_API rt_status RT_CALL rt_model_create(const rt_model_config* config, const rt_tokenizer* tokenizer,
                                         uint64_t seed, const rt_model_load_options* options,
                                         rt_model** model);

/* --- files ----------------------------------------------------------------------------------------------------------- */

/* By the path: its suffix .gguf or .rift; a folder that is there, a name without a suffix or with "/" at its
 * end is a Hugging Face folder. */
enum { RT_FORMAT_BY_PATH = 0, RT_FORMAT_RIFT = 1, RT_FORMAT_GGUF = 2, RT_FORMAT_HUGGING_FACE = 3 };

typedef struct rt_model_save_options {
  uint64_t struct_size;
  int32_t format;                /* RT_FORMAT_*; default by the path */
  int32_t type;                  /* RT_TYPE_*; default keep */
  const rt_cancel* cancel;       /* or NULL; a cancelled save leaves nothing */
  rt_progress_callback progress; /* or NULL */
  void* progress_user_data;
  uint64_t shard_bytes; /* tensors in one file of a Hugging Face folder; 0 (default): 5,000,000,000 */
  const char* stage;    /* .rift only: what made the weights ("pretrained", ...), kept as the metadata */
  uint64_t stage_size;  /* riftco.stage; UTF-8, default none */
  const char* parent;   /* .rift only: what they were made from; riftco.parent */
  uint64_t parent_size;
} rt_model_save_options;

RT_API rt_status RT_CALL rt_model_save_options_init(rt_model_save_options* options, uint64_t size);

/* Writes a model with its tokenizer: complete or not at all. An existing file is replaced; an existing folder
 * must be empty. What the format cannot hold exactly, other than by the rounding of `type`, is RT_UNSUPPORTED,
 * by name. A kept .rift file gives the same bits when it is loaded. */
RT_API rt_status RT_CALL rt_model_save(const rt_model* model, const char* path, uint64_t path_size,
                                       const rt_model_save_options* options);

/* --- looking into a model -------------------------------------------------------------------------------------------- */

typedef struct rt_model_info {
  uint64_t struct_size;
  int32_t backend;
  uint32_t threads;
  uint64_t parameter_count;
  uint64_t weight_bytes;    /* packed weights in memory, those of adapters included */
  uint64_t workspace_bytes; /* other memory: activations of steps so far, what trainers keep */
  uint64_t session_count;   /* decode sessions alive */
  uint64_t tensor_count;    /* parameters by name: rt_model_parameter */
  uint64_t metadata_count;  /* keys: rt_model_metadata_key */
  uint64_t parameter_epoch; /* changes of parameters so far */
  int32_t compute;          /* RT_COMPUTE_*; exact once training or merging has made its matrices float32 */
  uint32_t reserved;        /* 0 */
} rt_model_info;

RT_API rt_status RT_CALL rt_model_get_config(const rt_model* model, rt_model_config* config);
RT_API rt_status RT_CALL rt_model_get_info(const rt_model* model, rt_model_info* info);

/* What the model's file says beside what is computed, as text by key: the keys of a GGUF file (a list is
 * JSON), of config.json, or of a .rift file. Long lists, a vocabulary, are left out. A key that is not there is
 * RT_OUT_OF_RANGE. capacity and *required count bytes. */
RT_API rt_status RT_CALL rt_model_metadata(const rt_model* model, const char* key, uint64_t key_size,
                                           char* text, uint64_t capacity, uint64_t* required);
/* Key number `index`, below rt_model_info.metadata_count, in the order of their bytes. */
RT_API rt_status RT_CALL rt_model_metadata_key(const rt_model* model, uint64_t index, char* key,
                                               uint64_t capacity, uint64_t* required);

typedef struct rt_parameter_info {
  uint64_t struct_size;
  const char* name;  /* "layers.0.q.weight", ends with NUL; the model's, as is type */
  const char* type;  /* as it is kept: "f32", "bf16", "q8_0", ... */
  uint64_t rank;     /* 1 or 2 */
  uint64_t shape[2]; /* [elements, 1] or [outputs, inputs] */
} rt_parameter_info;

/* Parameter number `index`, below rt_model_info.tensor_count; those of adapters (riftco/train.h) come last, and their
 * names live as long as they are attached. */
RT_API rt_status RT_CALL rt_model_parameter(const rt_model* model, uint64_t index, rt_parameter_info* info);

/* The values of a parameter as float32, which holds each of them exactly, rows one after another. A name that
 * is not there is RT_OUT_OF_RANGE. capacity and *required count floats. */
RT_API rt_status RT_CALL rt_model_read_parameter(const rt_model* model, const char* name, uint64_t name_size,
                                                 float* values, uint64_t capacity, uint64_t* required);

/* --- changing a model ----------------------------------------------------------------------------------------------------
 *
 * While decode sessions of a model are alive (a running generation is one), every call that changes it is RT_INVALID_STATE and
 * says how many; generators between generations do not count. What comes after a change sees the new parameters.
 * A saved session is of the parameters it was saved with. */

/* Sets all values of a parameter, `count` as rt_model_read_parameter gives; f16 and bf16 ones round to nearest even. A
 * quantised one is RT_UNSUPPORTED (save the model as a float type first), a value that is not finite RT_NON_FINITE. */
RT_API rt_status RT_CALL rt_model_write_parameter(rt_model* model, const char* name, uint64_t name_size,
                                                  const float* values, uint64_t count);

/* Moves a model to another back end: RT_OK where it is there already, RT_BACKEND_UNAVAILABLE with the reason. */
RT_API rt_status RT_CALL rt_model_to(rt_model* model, int32_t backend);

/* --- using a model --------------------------------------------------------------------------------------------------- */

/* A new reference to the model's tokenizer; RT_INVALID_STATE where the file has none. */
RT_API rt_status RT_CALL rt_model_tokenizer(const rt_model* model, rt_tokenizer** tokenizer);

/* Logits of a whole sequence, [token_count, vocabulary_size]; bit for bit those of decoding it token by
 * token. At most maximum_context tokens. cancel may be NULL. capacity and *required count floats. */
RT_API rt_status RT_CALL rt_model_logits(const rt_model* model, const uint32_t* tokens, uint64_t token_count,
                                         const rt_cancel* cancel, float* logits, uint64_t capacity,
                                         uint64_t* required);

RT_API void RT_CALL rt_model_release(rt_model* model);

#ifdef __cplusplus
}
#endif

#endif /* RIFTCO_MODEL_H */
