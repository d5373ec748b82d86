// The floating-point environment: public calls and workers compute with the default one, whatever the host has set.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace riftco {

// Sets round to nearest, no flush to zero and masked exceptions; restores the caller's state at the end of its scope.
class FpEnvGuard {
 public:
  FpEnvGuard() noexcept : saved_(read()) { write(kDefault); }
  ~FpEnvGuard() { write(saved_); }
  FpEnvGuard(const FpEnvGuard&) = delete;
  FpEnvGuard& operator=(const FpEnvGuard&) = delete;

 private:
#if defined(__x86_64__)
  using Word = uint32_t;  // MXCSR
  static constexpr Word kDefault = 0x1F80;
  static Word read() noexcept { return _mm_getcsr(); }
  static void write(Word value) noexcept { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Word = uint64_t;  // FPCR
  static constexpr Word kDefault = 0;
  static Word read() noexcept {
    Word value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(Word value) noexcept { __asm__ volatile("msr fpcr, %0" : : "r"(value)); }
#else
#error "riftco needs to know how this processor keeps its rounding mode"
#endif
  Word saved_;
};

}  // namespace riftco
