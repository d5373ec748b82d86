// The CPU's instruction set: detected, or forced before the first use by a call or RIFTCO_CPU_ISA=scalar|avx2|avx512|neon.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "core/kernels.h"
#include "core/training_kernels.h"

namespace riftco {

// Numbers are those of rt_cpu_isa (include/riftco/base.h).
enum class CpuIsa : int32_t { scalar = 0, avx2 = 1, avx512 = 2, neon = 3 };

// avx512 needs F, BW, DQ, VL and VNNI; avx2 needs AVX2, FMA and F16C; both with operating system support.
bool cpu_isa_supported(CpuIsa isa) noexcept;

// Fails with unsupported (not this machine or not compiled in) or invalid_state (a table was already chosen, and is another).
void force_cpu_isa(CpuIsa isa);

// The chosen one; chooses at the first call. An unknown or unsupported RIFTCO_CPU_ISA fails with its value.
CpuIsa cpu_isa();

// Tables by instruction set, for tests and benchmarks; null where not supported here.
const KernelTable* cpu_kernels(CpuIsa isa) noexcept;
const TrainingKernels* cpu_training_kernels(CpuIsa isa) noexcept;

// Identifies the bits of the inference kernels: two libraries with the same id give the same results.
inline constexpr uint32_t kKernelContract = 1;

}  // namespace riftco
