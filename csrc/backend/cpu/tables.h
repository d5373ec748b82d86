// The kernel tables of this build, one per instruction set.
#pragma once
#include "core/kernels.h"

namespace riftco {

extern const KernelTable scalar_table;
#ifdef __x86_64__
extern const KernelTable avx2_table;
extern const KernelTable avx512_table;
#elif defined(__aarch64__)
extern const KernelTable neon_table;
extern const KernelTable neon_dot_table;  // the same with dot-product instructions (Armv8.2)
#endif

}  // namespace riftco
