#include "backend/cpu/isa.h"

#include <cstdlib>
#include <mutex>
#include <optional>

#include "backend/cpu/tables.h"
#include "base/error.h"

#ifdef __x86_64__
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace riftco {
namespace {

constexpr CpuIsa kAll[] = {CpuIsa::scalar, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::neon};
constexpr const char* kNames[] = {"scalar", "avx2", "avx512", "neon"};

const char* name_of(CpuIsa isa) { return kNames[size_t(isa)]; }

#ifdef __x86_64__
struct Features {
  bool avx2 = false, avx512 = false, bf16 = false;
};

// Register state that the operating system saves: bits of XCR0.
uint32_t saved_state() {
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

Features detect() {
  constexpr uint32_t kYmmState = 0x06, kZmmState = 0xE6;
  constexpr uint32_t kAvx512 = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return {};
  const bool fma_f16c = (c & bit_FMA) && (c & bit_F16C);
  const uint32_t state = saved_state();
  if (!fma_f16c || (state & kYmmState) != kYmmState || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {};
  Features found;
  found.avx2 = b & bit_AVX2;
  found.avx512 =
      found.avx2 && (b & kAvx512) == kAvx512 && (c & bit_AVX512VNNI) && (state & kZmmState) == kZmmState;
  found.bf16 = found.avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & bit_AVX512BF16);
  return found;
}

const Features& features() {
  static const Features found = detect();
  return found;
}

const KernelTable* avx512_kernels() {
  if (!features().avx512) return nullptr;
  return features().bf16 ? &avx512_bf16_table : &avx512_table;
}
#elif defined(__aarch64__)
struct NeonTables {
  const KernelTable* kernels;
  const TrainingKernels* training;
};

NeonTables neon_tables() {
#ifdef __linux__
  constexpr unsigned long kDotProduct = 1ul << 20;  // HWCAP_ASIMDDP
  constexpr unsigned long kInt8Matrix = 1ul << 13;  // HWCAP2_I8MM
  if (!(getauxval(AT_HWCAP) & kDotProduct)) return {&neon_table, &neon_training_table};
  if (getauxval(AT_HWCAP2) & kInt8Matrix) return {&neon_i8mm_table, &neon_i8mm_training_table};
#endif
  return {&neon_dot_table, &neon_dot_training_table};  // every 64-bit Mac has these instructions
}
#endif

std::mutex mutex;
std::optional<CpuIsa> chosen;  // guarded by mutex; set once

CpuIsa best() {
  CpuIsa isa = CpuIsa::scalar;
  for (CpuIsa next : kAll)
    if (cpu_isa_supported(next)) isa = next;
  return isa;
}

CpuIsa from_environment() {
  const char* value = std::getenv("RIFTCO_CPU_ISA");
  if (value == nullptr || *value == '\0') return best();
  for (CpuIsa isa : kAll) {
    if (std::string_view(value) != name_of(isa)) continue;
    if (!cpu_isa_supported(isa))
      fail(Status::unsupported, "RIFTCO_CPU_ISA=%s: not supported by this machine or build", value);
    return isa;
  }
  fail(Status::invalid_argument, "RIFTCO_CPU_ISA=%s: not one of scalar, avx2, avx512, neon",
       quoted(value).c_str());
}

}  // namespace

bool cpu_isa_supported(CpuIsa isa) noexcept { return cpu_kernels(isa) != nullptr; }

const KernelTable* cpu_kernels(CpuIsa isa) noexcept {
  switch (isa) {
    case CpuIsa::scalar:
      return &scalar_table;
#ifdef __x86_64__
    case CpuIsa::avx2:
      return features().avx2 ? &avx2_table : nullptr;
    case CpuIsa::avx512:
      return avx512_kernels();
#elif defined(__aarch64__)
    case CpuIsa::neon:
      return neon_tables().kernels;
#endif
    default:
      return nullptr;
  }
}

const TrainingKernels* cpu_training_kernels(CpuIsa isa) noexcept {
  const KernelTable* kernels = cpu_kernels(isa);
  if (kernels == &scalar_table) return &scalar_training_table;
#ifdef __x86_64__
  if (kernels == &avx2_table) return &avx2_training_table;
  if (kernels == &avx512_table || kernels == &avx512_bf16_table) return &avx512_training_table;
#elif defined(__aarch64__)
  if (kernels == neon_tables().kernels) return neon_tables().training;
#endif
  return nullptr;
}

void force_cpu_isa(CpuIsa isa) {
  if (size_t(isa) >= std::size(kAll))
    fail(Status::invalid_argument, "CPU instruction set %d is unknown", int(isa));
  if (!cpu_isa_supported(isa))
    fail(Status::unsupported, "CPU instruction set %s is not supported by this machine or build",
         name_of(isa));
  std::lock_guard lock(mutex);
  if (chosen && *chosen != isa)
    fail(Status::invalid_state, "CPU instruction set %s was already chosen, %s comes too late",
         name_of(*chosen), name_of(isa));
  chosen = isa;
}

CpuIsa cpu_isa() {
  std::lock_guard lock(mutex);
  if (!chosen) chosen = from_environment();
  return *chosen;
}

}  // namespace riftco
