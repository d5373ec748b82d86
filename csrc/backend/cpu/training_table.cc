// Compiled once per instruction set, as kernel_table.cc.
#include "backend/cpu/tables.h"
//
#include "backend/cpu/optimizer.h"

namespace riftco {

const TrainingKernels RIFTCO_TRAINING_TABLE = {
    .adam_update = adam_update,
    .sum_squares = sum_squares,
};

}  // namespace riftco
