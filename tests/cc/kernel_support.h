// What the kernel tests share: instruction sets as a parameter, aligned memory that starts as NaN, random data.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "reference.h"

namespace riftco {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Memory as the engine gives it: 64-byte aligned. Every float in it starts as NaN.
class Memory {
 public:
  explicit Memory(size_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(::operator new(bytes ? bytes : 1, std::align_val_t(64)))) {
    std::memset(data_, 0xFF, bytes);
  }
  Memory(Memory&& other) noexcept : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  ~Memory() { ::operator delete(data_, std::align_val_t(64)); }
  std::byte* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }
  size_t size() const { return bytes_; }

 private:
  size_t bytes_;
  std::byte* data_;
};

// Equal to the last bit; any NaN equals any other.
inline bool same(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : __builtin_bit_cast(uint32_t, a) == __builtin_bit_cast(uint32_t, b);
}

// Quantised types whose blocks begin with two halves, not one (q6_k: end with one).
inline bool has_minimum(DType type) {
  return type == DType::q4_1 || type == DType::q5_1 || type == DType::q4_k || type == DType::q5_k;
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint32_t below(uint32_t n) { return uint32_t(engine_() % n); }
  float unit() { return float(int32_t(engine_() >> 32)) * 0x1p-31f; }  // [-1, 1)
  template <class T, size_t N>
  T pick(const T (&from)[N]) {
    return from[below(N)];
  }
  reference::Floats floats(size_t n, float scale = 1) {
    reference::Floats v(n);
    for (float& x : v) x = scale * unit();
    return v;
  }
  // Rows in file layout with sensible scales; every stored integer occurs.
  std::vector<std::byte> rows(DType type, size_t count, size_t inputs) {
    std::vector<std::byte> out(count * row_bytes(type, inputs));
    const DTypeInfo& info = dtype_info(type);
    const bool has_parts = info.block == 256;
    for (std::byte* p = out.data(); p < out.data() + out.size(); p += info.bytes) {
      const float v = 0.1f * unit();
      const auto put = [p](size_t at, uint16_t half) { std::memcpy(p + at, &half, 2); };
      if (type == DType::f32) std::memcpy(p, &v, 4);
      if (type == DType::f16) put(0, float_to_half(v));
      if (type == DType::bf16) put(0, float_to_bf16(v));
      if (!is_quantised(type)) continue;
      for (uint32_t i = 0; i < info.bytes; i++) p[i] = std::byte(engine_() & 255);
      put(type == DType::q6_k ? 208 : 0, float_to_half((has_parts ? 0.001f : 0.02f) * v));
      if (has_minimum(type)) put(2, float_to_half((has_parts ? 0.001f : 0.05f) * unit()));
    }
    return out;
  }

 private:
  std::mt19937_64 engine_;
};

// A test for each instruction set; skipped where the machine or build lacks it.
class KernelTest : public testing::TestWithParam<CpuIsa> {
 protected:
  void SetUp() override {
    table_ = cpu_kernels(GetParam());
    if (!table_) GTEST_SKIP() << "this machine or build lacks the instruction set";
  }
  const KernelTable& kernels() const { return *table_; }

  // Calls f(share) for every share of `count`.
  template <class F>
  static void shares(uint32_t count, F f) {
    for (uint32_t i = 0; i < count; i++) f(Share{i, count});
  }

 private:
  const KernelTable* table_ = nullptr;
};
inline std::string isa_name(const testing::TestParamInfo<CpuIsa>& info) {
  static constexpr const char* kNames[] = {"scalar", "avx2", "avx512", "neon"};
  return kNames[size_t(info.param)];
}
#define RIFTCO_ALL_INSTRUCTION_SETS(Suite) \
  INSTANTIATE_TEST_SUITE_P(                \
      Isa, Suite, testing::Values(CpuIsa::scalar, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::neon), isa_name)

}  // namespace riftco
