// Training kernels against plain loops: to the last bit where the contract gives the order, else within rounding of double.
#include "core/math.h"
#include "core/training_kernels.h"
#include "kernel_support.h"

namespace riftco {
namespace {

using reference::Floats;

class TrainingKernelTest : public KernelTest {
 protected:
  const TrainingKernels& training() const { return *cpu_training_kernels(GetParam()); }

  // f32 [rows, columns] in the packed layout, and back.
  Memory pack(const Floats& values, uint32_t rows, uint32_t columns) const {
    Memory memory(kernels().packed_bytes(DType::f32, rows, columns));
    std::memset(memory.data(), 0, memory.size());
    kernels().pack_rows({DType::f32, rows, columns, memory.data()}, 0, rows,
                        reinterpret_cast<const std::byte*>(values.data()));
    return memory;
  }
  Floats unpack(const Memory& memory, uint32_t rows, uint32_t columns) const {
    Floats values(size_t(rows) * columns);
    kernels().unpack_rows({DType::f32, rows, columns, memory.data()}, 0, rows,
                          reinterpret_cast<std::byte*>(values.data()));
    return values;
  }

  template <class Kernel, class Args>
  static void run(Kernel kernel, const Args& args, uint32_t workers) {
    shares(workers, [&](Share share) { kernel(args, share); });
  }
};
RIFTCO_ALL_INSTRUCTION_SETS(TrainingKernelTest);

void expect_same(const Floats& expected, const float* actual) {
  for (size_t i = 0; i < expected.size(); i++)
    ASSERT_TRUE(same(expected[i], actual[i])) << i << ": " << expected[i] << " " << actual[i];
}

void expect_near(const std::vector<double>& expected, const float* actual, double tolerance) {
  for (size_t i = 0; i < expected.size(); i++)
    ASSERT_NEAR(expected[i], double(actual[i]), tolerance * (1 + std::fabs(expected[i]))) << i;
}

TEST_P(TrainingKernelTest, TransposedChunksAreTheMatrixTheOtherWayRound) {
  Random random(1);
  for (const auto& [outputs, inputs] : {std::pair{1u, 1u}, {97u, 50u}, {200u, 33u}}) {
    const Floats values = random.floats(size_t(outputs) * inputs);
    const Memory packed = pack(values, outputs, inputs);
    const PackedMatrix from{DType::f32, outputs, inputs, packed.data()};
    for (uint32_t first = 0; first < outputs; first += 96) {  // whole panels of every instruction set
      const uint32_t count = std::min(96u, outputs - first);
      Memory memory(kernels().packed_bytes(DType::f32, inputs, count));
      const PackedMatrix to{DType::f32, inputs, count, memory.data()};
      run(training().transpose_packed, TransposeArgs{&from, first, count, &to}, 3);
      const Floats back = unpack(memory, inputs, count);
      for (uint32_t i = 0; i < inputs; i++)
        for (uint32_t o = 0; o < count; o++)
          ASSERT_EQ(back[size_t(i) * count + o], values[size_t(first + o) * inputs + i]);
    }
  }
}

TEST_P(TrainingKernelTest, OuterProductsAreOneChainOverTheRows) {
  Random random(2);
  for (const auto& [rows, inputs, outputs] : {std::tuple{1u, 1u, 1u}, {129u, 20u, 50u}, {300u, 13u, 97u}}) {
    const uint32_t stride = inputs + 3;
    const Floats x = random.floats(size_t(rows) * stride), dy = random.floats(size_t(rows) * (outputs + 5)),
                 start = random.floats(size_t(outputs) * inputs);
    Memory operand(kernels().operand_bytes(inputs, rows, kOperandFloat)),
        gradient = pack(start, outputs, inputs), scratch(training().outer_scratch_bytes());
    const Operand transposed{operand.data(), inputs, rows, kOperandFloat};
    run(training().pack_transposed, PackTransposedArgs{x.data(), stride, transposed}, 2);
    run(training().accumulate_outer,
        OuterArgs{transposed, dy.data(), outputs + 5, outputs, gradient.floats(), scratch.data()}, 3);
    Floats expected = start;
    for (uint32_t o = 0; o < outputs; o++)
      for (uint32_t i = 0; i < inputs; i++)
        for (uint32_t r = 0; r < rows; r++)
          expected[o * inputs + i] =
              std::fma(x[r * stride + i], dy[r * (outputs + 5) + o], expected[o * inputs + i]);
    expect_same(expected, unpack(gradient, outputs, inputs).data());
  }
}

TEST_P(TrainingKernelTest, ColumnSumsGoDownTheRows) {
  Random random(3);
  constexpr uint32_t kRows = 37, kColumns = 35, kStride = 40;
  const Floats x = random.floats(kRows * kStride);
  Floats sums = random.floats(kColumns), expected = sums;
  for (uint32_t r = 0; r < kRows; r++)
    for (uint32_t c = 0; c < kColumns; c++) expected[c] += x[r * kStride + c];
  run(training().column_sums, ColumnSumArgs{x.data(), kStride, kRows, kColumns, sums.data()}, 2);
  expect_same(expected, sums.data());
}

TEST_P(TrainingKernelTest, RowsOfTheSameTokenAddUpInOrder) {
  Random random(4);
  constexpr uint32_t kRows = 40, kWidth = 21, kTokens = 70;
  const Floats dx = random.floats(kRows * kWidth), start = random.floats(kTokens * kWidth);
  std::vector<uint32_t> index(kRows);
  for (uint32_t& i : index) i = random.below(3) ? random.below(kTokens) : 5;
  Memory gradient = pack(start, kTokens, kWidth);
  run(training().scatter_rows, ScatterArgs{dx.data(), index.data(), kRows, kWidth, gradient.floats()}, 3);
  Floats expected = start;
  for (uint32_t r = 0; r < kRows; r++)
    for (uint32_t c = 0; c < kWidth; c++) expected[index[r] * kWidth + c] += dx[r * kWidth + c];
  expect_same(expected, unpack(gradient, kTokens, kWidth).data());
}

TEST_P(TrainingKernelTest, NormaliseGivesTheBitsOfInference) {
  Random random(5);
  constexpr uint32_t kRows = 5, kWidth = 53;
  const Floats x = random.floats(kRows * kWidth), weight = random.floats(kWidth),
               bias = random.floats(kWidth);
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    const float* shift = kind == NormKind::layer ? bias.data() : nullptr;
    Floats out(kRows * kWidth);
    RowStatistics statistics[kRows];
    run(training().normalise,
        NormaliseArgs{kind, 1e-5f, {weight.data(), shift}, x.data(), kRows, kWidth, out.data(), statistics},
        2);
    for (uint32_t r = 0; r < kRows; r++)
      expect_same(reference::norm(kind, 1e-5f, Floats(x.begin() + r * kWidth, x.begin() + (r + 1) * kWidth),
                                  weight, shift),
                  out.data() + r * kWidth);
  }
}

TEST_P(TrainingKernelTest, NormBackwardIsTheFormula) {
  Random random(6);
  constexpr uint32_t kRows = 7, kWidth = 35;
  const Floats x = random.floats(kRows * kWidth), dy = random.floats(kRows * kWidth),
               weight = random.floats(kWidth);
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    Floats out(kRows * kWidth), dx = random.floats(kRows * kWidth), d_weight(kWidth, 1.0f),
                                d_bias(kWidth, 2.0f);
    RowStatistics statistics[kRows];
    run(training().normalise,
        NormaliseArgs{kind, 1e-5f, {weight.data(), nullptr}, x.data(), kRows, kWidth, out.data(), statistics},
        1);
    std::vector<double> expected(dx.begin(), dx.end()), expected_weight(kWidth, 1.0),
        expected_bias(kWidth, 2.0);
    for (uint32_t r = 0; r < kRows; r++) {
      double mean = 0, along = 0;
      const auto n = [&](uint32_t c) {
        return (double(x[r * kWidth + c]) - double(statistics[r].mean)) * double(statistics[r].inverse);
      };
      const auto g = [&](uint32_t c) { return double(dy[r * kWidth + c]) * double(weight[c]); };
      for (uint32_t c = 0; c < kWidth; c++) mean += g(c) / kWidth, along += g(c) * n(c) / kWidth;
      if (kind == NormKind::rms) mean = 0;
      for (uint32_t c = 0; c < kWidth; c++) {
        expected[r * kWidth + c] += double(statistics[r].inverse) * (g(c) - mean - n(c) * along);
        expected_weight[c] += double(dy[r * kWidth + c]) * n(c);
        expected_bias[c] += double(dy[r * kWidth + c]);
      }
    }
    run(training().norm_backward,
        NormBackwardArgs{kind, weight.data(), x.data(), dy.data(), statistics, kRows, kWidth, dx.data(),
                         false},
        2);
    run(training().norm_gradients,
        NormGradientArgs{x.data(), dy.data(), statistics, kRows, kWidth, d_weight.data(), d_bias.data()}, 2);
    expect_near(expected, dx.data(), 1e-5);
    expect_near(expected_weight, d_weight.data(), 1e-5);
    expect_near(expected_bias, d_bias.data(), 1e-5);
  }
}

double gelu(Activation kind, double x) {
  if (kind == Activation::gelu_erf) return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.141592653589793) * (x + 0.044715 * x * x * x)));
}
double silu(double x) { return x / (1 + std::exp(-x)); }

TEST_P(TrainingKernelTest, ActivationsHaveTheirSlopes) {
  Random random(7);
  constexpr size_t kCount = 203;
  const Floats up = random.floats(kCount, 6), gate = random.floats(kCount, 6), slope = random.floats(kCount);
  for (const Activation kind : {Activation::gelu_erf, Activation::gelu_tanh, Activation::silu_gated}) {
    const bool gated = kind == Activation::silu_gated;
    Floats y(kCount), dy = slope, d_gate(kCount);
    run(training().activation_backward,
        ActivationBackwardArgs{kind, kCount, gated ? gate.data() : nullptr, up.data(), y.data(), dy.data(),
                               gated ? d_gate.data() : nullptr},
        3);
    std::vector<double> expected(kCount), expected_up(kCount), expected_gate(kCount);
    for (size_t i = 0; i < kCount; i++) {
      constexpr double kStep = 1e-5;
      const double u = double(up[i]), g = double(gate[i]), d = double(slope[i]);
      const auto value = [&](double a, double b) { return gated ? silu(b) * a : gelu(kind, a); };
      expected[i] = value(u, g);
      expected_up[i] = d * (value(u + kStep, g) - value(u - kStep, g)) / (2 * kStep);
      expected_gate[i] = d * (value(u, g + kStep) - value(u, g - kStep)) / (2 * kStep);
    }
    expect_near(expected, y.data(), 2e-6);
    expect_near(expected_up, dy.data(), 4e-6);
    if (gated) expect_near(expected_gate, d_gate.data(), 4e-6);
  }
}

TEST_P(TrainingKernelTest, RotatingBackGivesTheStart) {
  Random random(8);
  constexpr uint32_t kRows = 6, kPeriod = 3, kHeads = 2, kWidth = 10, kPairs = 4;
  const Floats x = random.floats(kRows * kHeads * kWidth);
  Floats angles;
  for (uint32_t t = 0; t < kPeriod; t++)
    for (const float v : reference::rotary({1.0, 0.5, 0.25, 0.125}, t)) angles.push_back(v);
  Floats turned = x, expected = x;
  for (uint32_t r = 0; r < kRows; r++)
    for (uint32_t h = 0; h < kHeads; h++)
      reference::rotate(
          expected.data() + (r * kHeads + h) * kWidth,
          Floats(angles.begin() + r % kPeriod * 2 * kPairs, angles.begin() + (r % kPeriod + 1) * 2 * kPairs));
  RotateArgs args{turned.data(), kRows, kPeriod, kHeads, kWidth, kPairs, angles.data(), false};
  run(training().rotate, args, 2);
  expect_same(expected, turned.data());
  args.inverse = true;
  run(training().rotate, args, 2);
  expect_near({x.begin(), x.end()}, turned.data(), 1e-6);
}

TEST_P(TrainingKernelTest, CrossEntropyAndItsGradient) {
  Random random(9);
  constexpr uint32_t kRows = 4, kVocabulary = 77;
  const Floats logits = random.floats(kRows * kVocabulary, 20);
  const uint32_t targets[kRows] = {3, UINT32_MAX, 76, 0};
  Floats only = logits, both = logits, loss(kRows), loss_only(kRows);
  run(training().cross_entropy,
      CrossEntropyArgs{only.data(), targets, kRows, kVocabulary, 0, loss_only.data()}, 2);
  run(training().cross_entropy,
      CrossEntropyArgs{both.data(), targets, kRows, kVocabulary, 0.25f, loss.data()}, 2);
  expect_same(logits, only.data());
  expect_same(loss, loss_only.data());
  for (uint32_t r = 0; r < kRows; r++) {
    std::vector<double> gradient(kVocabulary, 0.0);
    double sum = 0, expected = 0;
    const auto x = [&](uint32_t v) { return double(logits[r * kVocabulary + v]); };
    for (uint32_t v = 0; v < kVocabulary; v++) sum += std::exp(x(v));
    if (targets[r] < kVocabulary) {
      expected = std::log(sum) - x(targets[r]);
      for (uint32_t v = 0; v < kVocabulary; v++)
        gradient[v] = 0.25 * (std::exp(x(v)) / sum - (v == targets[r] ? 1 : 0));
    }
    EXPECT_NEAR(double(loss[r]), expected, 1e-5);
    expect_near(gradient, both.data() + r * kVocabulary, 1e-6);
  }
}

// --- attention ---

struct Attention {
  uint32_t sequences, length, heads, kv_heads, width, window;
  Floats q, k, v, d_context;
  size_t q_row() const { return size_t(heads) * width; }
  size_t k_row() const { return size_t(kv_heads) * width; }
};

Attention random_attention(uint32_t length, uint32_t heads, uint32_t kv_heads, uint32_t width,
                           uint32_t window) {
  Random random(length);
  Attention a{2, length, heads, kv_heads, width, window, {}, {}, {}, {}};
  a.q = random.floats(2 * length * a.q_row(), 3), a.k = random.floats(2 * length * a.k_row(), 3);
  a.v = random.floats(2 * length * a.k_row()), a.d_context = random.floats(2 * length * a.q_row());
  return a;
}

struct AttentionResult {
  std::vector<double> context, dq, dk, dv;
};

AttentionResult plain_attention(const Attention& a) {
  AttentionResult out;
  out.context.resize(a.q.size()), out.dq.resize(a.q.size()), out.dk.resize(a.k.size()),
      out.dv.resize(a.k.size());
  const double scale = 1 / std::sqrt(double(a.width));
  for (uint32_t s = 0; s < a.sequences; s++)
    for (uint32_t h = 0; h < a.heads; h++)
      for (uint32_t t = 0; t < a.length; t++) {
        const size_t q = (size_t(s) * a.length + t) * a.q_row() + size_t(h) * a.width;
        const uint32_t first = t >= a.window ? t - a.window + 1 : 0;
        std::vector<double> p(t + 1), dp(t + 1);
        const auto key = [&](uint32_t j) {
          return (size_t(s) * a.length + j) * a.k_row() + size_t(h / (a.heads / a.kv_heads)) * a.width;
        };
        double sum = 0, along = 0;
        for (uint32_t j = first; j <= t; j++) {
          double score = 0;
          for (uint32_t d = 0; d < a.width; d++) score += double(a.q[q + d]) * double(a.k[key(j) + d]);
          sum += p[j] = std::exp(score * scale);
        }
        for (uint32_t j = first; j <= t; j++) {
          p[j] /= sum;
          for (uint32_t d = 0; d < a.width; d++) {
            out.context[q + d] += p[j] * double(a.v[key(j) + d]);
            out.dv[key(j) + d] += p[j] * double(a.d_context[q + d]);
            dp[j] += double(a.d_context[q + d]) * double(a.v[key(j) + d]);
          }
          along += p[j] * dp[j];
        }
        for (uint32_t j = first; j <= t; j++)
          for (uint32_t d = 0; d < a.width; d++) {
            out.dq[q + d] += scale * p[j] * (dp[j] - along) * double(a.k[key(j) + d]);
            out.dk[key(j) + d] += scale * p[j] * (dp[j] - along) * double(a.q[q + d]);
          }
      }
  return out;
}

TEST_P(TrainingKernelTest, AttentionIsThatOfPlainLoops) {
  for (const Attention& a :
       {random_attention(1, 1, 1, 8, UINT32_MAX), random_attention(64, 2, 2, 16, UINT32_MAX),
        random_attention(70, 4, 2, 20, UINT32_MAX), random_attention(130, 2, 1, 7, 70),
        random_attention(66, 2, 2, 16, 1)}) {
    const AttentionResult expected = plain_attention(a);
    for (const bool materialized : {false, true}) {
      Memory context(4 * a.q.size()), dq(4 * a.q.size()), dk(4 * a.k.size()), dv(4 * a.k.size()),
          probabilities(4 * size_t(a.sequences) * a.heads * a.length * a.length),
          scratch(training().attention_scratch_bytes(a.length, a.width));
      std::vector<SoftmaxStatistics> statistics(size_t(a.sequences) * a.heads * a.length);
      const TrainingAttentionArgs args{.length = a.length,
                                       .heads = a.heads,
                                       .kv_heads = a.kv_heads,
                                       .head_width = a.width,
                                       .window = a.window,
                                       .scale = 1 / std::sqrt(float(a.width)),
                                       .q = a.q.data(),
                                       .k = a.k.data(),
                                       .v = a.v.data(),
                                       .context = context.floats(),
                                       .statistics = statistics.data(),
                                       .probabilities = materialized ? probabilities.floats() : nullptr,
                                       .dcontext = a.d_context.data(),
                                       .dq = dq.floats(),
                                       .dk = dk.floats(),
                                       .dv = dv.floats(),
                                       .scratch = scratch.data()};
      for (uint32_t unit = 0; unit < a.sequences * a.heads; unit++) training().attention_forward(args, unit);
      for (uint32_t unit = 0; unit < a.sequences * a.kv_heads; unit++)
        training().attention_backward(args, unit);
      expect_near(expected.context, context.floats(), 1e-5);
      expect_near(expected.dv, dv.floats(), 2e-5);
      expect_near(expected.dq, dq.floats(), 2e-5);
      expect_near(expected.dk, dk.floats(), 2e-5);
    }
  }
}

}  // namespace
}  // namespace riftco
