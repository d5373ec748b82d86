// The kernel tables of this build, one per instruction set.
#pragma once
#include "core/kernels.h"
#include "core/training_kernels.h"

namespace riftco {

extern const KernelTable scalar_table;
extern const TrainingKernels scalar_training_table;
#ifdef __x86_64__
extern const KernelTable avx2_table;
extern const KernelTable avx512_table;
extern const KernelTable avx512_bf16_table;  // the same with products of bf16
extern const TrainingKernels avx2_training_table;
extern const TrainingKernels avx512_training_table;
#elif defined(__aarch64__)
extern const KernelTable neon_table;
extern const KernelTable neon_dot_table;   // the same with dot-product instructions (Armv8.2)
extern const KernelTable neon_i8mm_table;  // and with those for products of small int8 matrices (Armv8.6)
extern const TrainingKernels neon_training_table;
extern const TrainingKernels neon_dot_training_table;
extern const TrainingKernels neon_i8mm_training_table;
#endif

}  // namespace riftco
