// Compiled once per instruction set, as kernel_table.cc.
#include "backend/cpu/tables.h"
//
#pragma GCC diagnostic ignored "-Wunused-function"  // inference kernels are beside the parts shared with them
#include "backend/cpu/optimizer.h"
#include "backend/cpu/training_attention.h"
#include "backend/cpu/training_layers.h"
#include "backend/cpu/training_matrix.h"

namespace riftco {

const TrainingKernels RIFTCO_TRAINING_TABLE = {
    .transpose_packed = transpose_packed,
    .pack_transposed = pack_transposed,
    .outer_scratch_bytes = outer_scratch_bytes,
    .accumulate_outer = accumulate_outer,
    .column_sums = column_sums,
    .scatter_rows = scatter_rows,
    .normalise = normalise,
    .norm_backward = norm_backward,
    .norm_gradients = norm_gradients,
    .activation_backward = activation_backward,
    .rotate = rotate,
    .cross_entropy = cross_entropy,
    .attention_scratch_bytes = training_attention_scratch_bytes,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .adam_update = adam_update,
    .sum_squares = sum_squares,
};

}  // namespace riftco
