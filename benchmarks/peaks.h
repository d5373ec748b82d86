// Loops that do nothing but arithmetic in registers: what the processor could reach at most.
//
// In assembler, because compilers reorder and spill intrinsics in such loops.
#pragma once
#include <cstdint>

struct Peak {
  double operations;                  // of one repetition, two for a multiply-add
  void (*run)(uint64_t repetitions);  // null: no such loop for this processor
};

// clang-format off
#define EACH_12(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

#if defined(__x86_64__)
#define LOOP(body) \
  [](uint64_t n) { asm volatile("vpxor %%xmm12, %%xmm12, %%xmm12\nvpxor %%xmm13, %%xmm13, %%xmm13\n1:\n" body "sub $1, %0\njnz 1b\n" : "+r"(n) :: \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "cc"); }
#define FMA_Y(i) "vfmadd231ps %%ymm12, %%ymm13, %%ymm" #i "\n"
#define FMA_Z(i) "vfmadd231ps %%zmm12, %%zmm13, %%zmm" #i "\n"
#define DOT_Z(i) "vpdpbusd %%zmm12, %%zmm13, %%zmm" #i "\n"
#define DOT_Y(i) "vpmaddubsw %%ymm12, %%ymm13, %%ymm14\nvpaddw %%ymm14, %%ymm" #i ", %%ymm" #i "\n"

// Fused multiply-adds.
inline Peak f32_peak() {
  if (__builtin_cpu_supports("avx512f")) return {12 * 16 * 2, LOOP(EACH_12(FMA_Z))};
  if (__builtin_cpu_supports("fma")) return {12 * 8 * 2, LOOP(EACH_12(FMA_Y))};
  return {0, nullptr};
}
// Products of bytes: vpdpbusd, or with AVX2 vpmaddubsw and the addition of its 16-bit sums (their widening left out).
inline Peak int8_peak() {
  if (__builtin_cpu_supports("avx512vnni")) return {12 * 64 * 2, LOOP(EACH_12(DOT_Z))};
  if (__builtin_cpu_supports("avx2")) return {12 * 32 * 2, LOOP(EACH_12(DOT_Y))};
  return {0, nullptr};
}
#elif defined(__aarch64__)
#define LOOP(body) \
  [](uint64_t n) { asm volatile("1:\n" body "subs %0, %0, #1\nb.ne 1b\n" : "+r"(n) :: \
    "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "cc"); }
#define FMLA(i) "fmla v" #i ".4s, v12.4s, v13.4s\n"
#define SDOT(i) ".arch_extension dotprod\nsdot v" #i ".4s, v12.16b, v13.16b\n"

inline Peak f32_peak() { return {12 * 4 * 2, LOOP(EACH_12(FMLA))}; }
inline Peak int8_peak() { return {12 * 16 * 2, LOOP(EACH_12(SDOT))}; }
#endif
// clang-format on
