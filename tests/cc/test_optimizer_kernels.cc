// The optimizer's kernels against plain loops, to the last bit.
#include "core/training_kernels.h"
#include "kernel_support.h"

namespace riftco {
namespace {

class OptimizerKernelTest : public KernelTest {
 protected:
  const TrainingKernels& training() const { return *cpu_training_kernels(GetParam()); }
};

constexpr AdamArgs kArgs = {.parameter = nullptr,
                            .gradient = nullptr,
                            .moment1 = nullptr,
                            .moment2 = nullptr,
                            .gradient_scale = 0.7f,
                            .beta1 = 0.9f,
                            .one_minus_beta1 = 0.1f,
                            .beta2 = 0.99f,
                            .one_minus_beta2 = 0.01f,
                            .step_size = 0.003f,
                            .inverse_root_correction2 = 3.1f,
                            .epsilon = 1e-8f,
                            .decay = 1e-4f};

struct Element {
  float p, m, v;
};

float without_subnormal(float x) { return std::fabs(x) < 0x1p-126f ? 0 : x; }

Element reference_update(const AdamArgs& a, Element e, float gradient) {
  const float g = gradient * a.gradient_scale;
  e.m = without_subnormal(std::fma(a.beta1, e.m, a.one_minus_beta1 * g));
  e.v = without_subnormal(std::fma(a.beta2, e.v, a.one_minus_beta2 * g * g));
  const float denominator = std::fma(std::sqrt(e.v), a.inverse_root_correction2, a.epsilon);
  e.p = std::fma(-a.step_size, e.m / denominator, std::fma(-a.decay, e.p, e.p));
  return e;
}

TEST_P(OptimizerKernelTest, AdamUpdateIsTheWrittenFormula) {
  constexpr size_t kCount = 16 * 37, kBegin = 16 * 3, kEnd = 16 * 31;
  Random random(1);
  Memory p(4 * kCount), g(4 * kCount), m(4 * kCount), v(4 * kCount);
  std::vector<Element> before(kCount);
  for (size_t i = 0; i < kCount; i++) {
    // Magnitudes from far below 1 to far above; some elements have never had a gradient, some no longer have one.
    const float scale = std::ldexp(1.0f, int(random.below(60)) - 40);
    before[i] = {random.unit(), i % 5 ? scale * random.unit() : 0,
                 i % 5 ? std::fabs(scale * random.unit()) : 0};
    if (i % 7 == 0) before[i].m = 0x1p-126f, before[i].v = 0x1p-126f;
    p.floats()[i] = before[i].p, m.floats()[i] = before[i].m, v.floats()[i] = before[i].v;
    g.floats()[i] = i % 5 && i % 7 ? scale * random.unit() : 0;
  }
  AdamArgs args = kArgs;
  args.parameter = p.floats(), args.gradient = g.floats(), args.moment1 = m.floats(),
  args.moment2 = v.floats();
  training().adam_update(args, kBegin, kEnd);
  for (size_t i = 0; i < kCount; i++) {
    const Element expected =
        i >= kBegin && i < kEnd ? reference_update(args, before[i], g.floats()[i]) : before[i];
    EXPECT_TRUE(same(p.floats()[i], expected.p) && same(m.floats()[i], expected.m) &&
                same(v.floats()[i], expected.v))
        << i << ": " << p.floats()[i] << ", not " << expected.p;
  }
}

TEST_P(OptimizerKernelTest, PaddingStaysZero) {
  Memory p(64), g(64), m(64), v(64);
  for (const Memory* memory : {&p, &g, &m, &v}) std::memset(memory->data(), 0, 64);
  AdamArgs args = kArgs;
  args.parameter = p.floats(), args.gradient = g.floats(), args.moment1 = m.floats(),
  args.moment2 = v.floats();
  training().adam_update(args, 0, 16);
  for (const Memory* memory : {&p, &m, &v})
    for (size_t i = 0; i < 16; i++) EXPECT_EQ(memory->floats()[i], 0.0f);
}

TEST_P(OptimizerKernelTest, SumsOfSquaresDoNotDependOnThePanels) {
  Random random(2);
  for (const auto& [outputs, inputs] :
       {std::pair{1u, 1u}, {7u, 5u}, {16u, 3u}, {50u, 33u}, {96u, 20u}, {97u, 64u}}) {
    PackedMatrix matrix{.type = DType::f32, .outputs = outputs, .inputs = inputs};
    Memory packed(kernels().packed_bytes(DType::f32, outputs, inputs));
    std::memset(packed.data(), 0, packed.size());
    matrix.data = packed.data();
    const reference::Floats rows = random.floats(size_t(outputs) * inputs, 3);
    kernels().pack_rows(matrix, 0, outputs, std::as_bytes(std::span(rows)).data());
    std::vector<double> sums(outputs, -1);
    shares(3, [&](Share share) {
      training().sum_squares(packed.floats(), outputs, inputs, sums.data(), share);
    });
    for (uint32_t o = 0; o < outputs; o++) {
      double expected = 0;
      for (uint32_t i = 0; i < inputs; i++) {
        const double x = rows[size_t(o) * inputs + i];
        expected += x * x;
      }
      EXPECT_EQ(sums[o], expected) << outputs << " x " << inputs << ", output " << o;
    }
  }
}

TEST_P(OptimizerKernelTest, AVectorIsAMatrixOfOneInput) {
  Random random(3);
  const reference::Floats values = random.floats(83);
  std::vector<double> sums(values.size());
  shares(2, [&](Share share) {
    training().sum_squares(values.data(), uint32_t(values.size()), 1, sums.data(), share);
  });
  for (size_t i = 0; i < values.size(); i++) EXPECT_EQ(sums[i], double(values[i]) * double(values[i]));
}

TEST_P(OptimizerKernelTest, WhatIsNotFiniteIsSeen) {
  const float values[] = {1, std::numeric_limits<float>::infinity(), kNan, 3e38f};
  double sums[4];
  training().sum_squares(values, 4, 1, sums, {});
  EXPECT_EQ(sums[0], 1);
  EXPECT_FALSE(std::isfinite(sums[1]) || std::isfinite(sums[2]));
  EXPECT_TRUE(std::isfinite(sums[3]));
}

RIFTCO_ALL_INSTRUCTION_SETS(OptimizerKernelTest);

}  // namespace
}  // namespace riftco
