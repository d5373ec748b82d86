// The kernel tables of this build, one per instruction set.
#pragma once
#include "core/kernels.h"

namespace riftco {

extern const KernelTable scalar_table;
#ifdef __x86_64__
extern const KernelTable avx2_table;
extern const KernelTable avx512_table;
#endif

}  // namespace riftco
