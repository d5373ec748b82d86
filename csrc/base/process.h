// fork(): objects of the parent are known by their generation; and the CPUs the process may use.
#pragma once
#include <cstdint>

namespace riftco {

// Grows by one in every child of fork(). An object made under another generation belongs to a parent.
uint32_t process_generation() noexcept;

// CPUs in the process's affinity mask, at least 1.
uint32_t usable_cpus() noexcept;

}  // namespace riftco
