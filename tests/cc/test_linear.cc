// Packing and matrix products of every instruction set against the plain loops, to the last bit.
#include "kernel_support.h"

namespace riftco {
namespace {

using reference::Floats;

// A type of weights and how its products are computed.
struct Kind {
  DType type;
  Compute compute = Compute::exact;

  uint32_t operand() const { return operand_kind(type, compute); }
  std::string name() const {
    return dtype_info(type).name + std::string(compute == Compute::bf16 ? " rounded" : "");
  }
};

std::vector<Kind> all_kinds() {
  std::vector<Kind> kinds(std::begin(kAllTypes), std::end(kAllTypes));
  kinds.push_back({DType::bf16, Compute::bf16});
  return kinds;
}

class Linear : public KernelTest {
 protected:
  struct Matrix {
    PackedMatrix packed;
    Memory memory;
    std::vector<std::byte> rows;  // file layout
    Floats bias;
  };

  Matrix matrix(Kind kind, uint32_t outputs, uint32_t inputs, bool bias, Random& random) {
    return matrix(kind, outputs, inputs, bias, random, random.rows(kind.type, outputs, inputs));
  }
  Matrix matrix(Kind kind, uint32_t outputs, uint32_t inputs, bool bias, Random& random,
                std::vector<std::byte> rows) {
    const DType type = kind.type;
    Matrix m = {{.type = type, .outputs = outputs, .inputs = inputs, .compute = kind.compute},
                Memory(kernels().packed_bytes(type, outputs, inputs)),
                std::move(rows),
                random.floats(bias ? outputs : 0)};
    std::memset(m.memory.data(), 0, m.memory.size());
    m.packed.data = m.memory.data();
    m.packed.bias = bias ? m.bias.data() : nullptr;
    const size_t row = row_bytes(type, inputs);
    for (uint32_t first = 0; first < outputs;) {  // in uneven pieces
      const uint32_t n = std::min(outputs - first, 1 + random.below(40));
      kernels().pack_rows(m.packed, first, n, m.rows.data() + first * row);
      first += n;
    }
    return m;
  }

  static float expected(const Matrix& m, uint32_t output, const float* x) {
    Floats rounded(x, x + (m.packed.compute == Compute::bf16 ? m.packed.inputs : 0));
    for (float& value : rounded) value = bf16_to_float(float_to_bf16(value));
    if (!rounded.empty()) x = rounded.data();
    const float a =
        reference::dot(m.packed.type, m.rows.data() + output * row_bytes(m.packed.type, m.packed.inputs), x,
                       m.packed.inputs);
    return m.packed.bias ? a + m.bias[output] : a;
  }

  Operand operand(Memory& memory, const float* x, uint32_t rows, uint32_t width, uint32_t kinds,
                  uint32_t share_count = 1) {
    const Operand out = {memory.data(), rows, width, kinds};
    shares(share_count, [&](Share share) { kernels().pack_operand({x, out}, share); });
    return out;
  }
  Memory operand_memory(uint32_t width, uint32_t kinds, uint32_t rows = kMaxBlockRows) {
    return Memory(kernels().operand_bytes(rows, width, kinds));
  }
};
RIFTCO_ALL_INSTRUCTION_SETS(Linear);

constexpr uint32_t kRows[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                              13, 14, 15, 16, 17, 18, 19, 20, 63, 64, 65, 256};

std::vector<uint32_t> widths(DType type) {
  if (dtype_info(type).block == 256) return {256, 768};
  if (is_quantised(type)) return {32, 64, 96, 320};
  return {1, 7, 31, 33, 320};
}

TEST_P(Linear, EveryTypeRowCountAndOddSizeEqualsTheReference) {
  Random random(1);
  for (const Kind& kind : all_kinds())
    for (uint32_t inputs : widths(kind.type))
      for (uint32_t outputs : {1u, 15u, 16u, 17u, 33u, 100u}) {
        const Matrix m = matrix(kind, outputs, inputs, outputs % 2 == 1, random);
        const Floats x = random.floats(size_t(kMaxBlockRows) * inputs);
        Floats want(size_t(kMaxBlockRows) * outputs);
        for (uint32_t r = 0; r < kMaxBlockRows; r++)
          for (uint32_t o = 0; o < outputs; o++) want[r * outputs + o] = expected(m, o, &x[r * inputs]);
        for (uint32_t rows : kRows) {
          Memory memory = operand_memory(inputs, kind.operand(), rows);
          const Operand in = operand(memory, x.data(), rows, inputs, kind.operand(), 1 + rows % 4);
          const size_t stride = outputs + 3;
          Floats out(rows * stride, -7);
          shares(1 + rows % 5, [&](Share share) {
            kernels().linear({{&m.packed}, {out.data()}, {stride}, 1, false, in}, share);
          });
          for (uint32_t r = 0; r < rows; r++)
            for (uint32_t o = 0; o < stride; o++)
              ASSERT_TRUE(same(out[r * stride + o], o < outputs ? want[r * outputs + o] : -7.0f))
                  << kind.name() << " " << outputs << "x" << inputs << " rows " << rows << " row " << r
                  << " output " << o;
        }
      }
}

TEST_P(Linear, ThreeMatricesOfMixedTypesShareOneOperand) {
  Random random(2);
  const uint32_t inputs = 256;
  const Matrix a = matrix({DType::bf16, Compute::bf16}, 50, inputs, true, random),
               b = matrix({DType::f16}, 23, inputs, false, random),
               c = matrix({DType::q6_k}, 70, inputs, true, random);
  const Matrix* all[] = {&a, &b, &c};
  constexpr uint32_t kinds = kOperandFloat | kOperandInt8 | kOperandRounded;
  for (uint32_t rows : {1u, 5u, 37u})
    for (uint32_t count : {1u, 2u, 3u, 7u, 40u})
      for (bool accumulate : {false, true}) {
        const Floats x = random.floats(rows * inputs);
        Memory memory = operand_memory(inputs, kinds, rows);
        const Operand in = operand(memory, x.data(), rows, inputs, kinds, count);
        Floats out[3], before[3];
        for (int i = 0; i < 3; i++) before[i] = out[i] = random.floats(rows * all[i]->packed.outputs);
        shares(count, [&](Share share) {
          kernels().linear({{&a.packed, &b.packed, &c.packed},
                            {out[0].data(), out[1].data(), out[2].data()},
                            {50, 23, 70},
                            3,
                            accumulate,
                            in},
                           share);
        });
        for (int i = 0; i < 3; i++)
          for (uint32_t j = 0; j < out[i].size(); j++) {
            const uint32_t outputs = all[i]->packed.outputs;
            const float want = expected(*all[i], j % outputs, &x[j / outputs * inputs]);
            ASSERT_TRUE(same(out[i][j], accumulate ? before[i][j] + want : want))
                << rows << " " << count << " " << i << " " << j;
          }
      }
}

// Values at the edges: extreme integers, zeros of both signs, subnormals, tiny and huge blocks.
TEST_P(Linear, ExtremeValuesEqualTheReference) {
  Random random(3);
  const uint32_t inputs = 256, outputs = 32, rows = 12;
  for (DType type : kAllTypes) {
    std::vector<std::byte> file = random.rows(type, outputs, inputs);
    for (size_t i = 0; is_quantised(type) && i < file.size() / 2; i++) {
      // the most negative, or the largest integers; scales of 16 bits stay
      const DTypeInfo& info = dtype_info(type);
      const size_t at = i % info.bytes;
      const bool is_half = type == DType::q6_k ? at >= 208 : at < (has_minimum(type) ? 4u : 2u);
      const bool is_int8 = type == DType::q8_0 || (type == DType::q6_k && at >= 192);
      if (!is_half) file[i] = is_int8 ? std::byte(0x80) : std::byte(0xFF);
    }
    if (!is_quantised(type))
      std::memset(file.data(), 0, file.size() / 4), file[1] = std::byte(1);  // zeros, a subnormal
    const Matrix m = matrix({type}, outputs, inputs, false, random, file);
    Floats x = random.floats(rows * inputs);
    const float fills[] = {1, -1, 0.0f, -0.0f, 1e-45f, -1e-38f, 0x1p-100f, 0x1.fp-101f, 3e38f, -3e38f};
    for (uint32_t r = 0; r < 10; r++) std::fill_n(x.begin() + r * inputs, 48, fills[r]);
    Memory memory = operand_memory(inputs, operand_kind(type), rows);
    const Operand in = operand(memory, x.data(), rows, inputs, operand_kind(type));
    Floats out(rows * outputs, kNan);
    kernels().linear({{&m.packed}, {out.data()}, {outputs}, 1, false, in}, {});
    for (uint32_t i = 0; i < out.size(); i++)
      ASSERT_TRUE(same(out[i], expected(m, i % outputs, &x[i / outputs * inputs])))
          << dtype_info(type).name << " row " << i / outputs << " output " << i % outputs << " " << out[i];
  }
}

TEST_P(Linear, NonFiniteActivationsSpoilTheirOwnRowOnly) {
  Random random(4);
  const uint32_t inputs = 256, outputs = 20, rows = 9;
  for (const Kind& kind : all_kinds())
    for (float bad : {kNan, INFINITY, -INFINITY}) {
      const Matrix m = matrix(kind, outputs, inputs, true, random);
      Floats x = random.floats(rows * inputs);
      x[4 * inputs + 37] = bad;
      Memory memory = operand_memory(inputs, kind.operand(), rows);
      const Operand in = operand(memory, x.data(), rows, inputs, kind.operand());
      Floats out(rows * outputs);
      kernels().linear({{&m.packed}, {out.data()}, {outputs}, 1, false, in}, {});
      for (uint32_t i = 0; i < out.size(); i++) {
        ASSERT_EQ(std::isfinite(out[i]), i / outputs != 4) << kind.name() << " " << bad << " " << i;
        ASSERT_TRUE(same(out[i], expected(m, i % outputs, &x[i / outputs * inputs])));
      }
    }
}

TEST_P(Linear, UnpackedRowsAreTheBytesPacked) {
  Random random(5);
  for (DType type : kAllTypes)
    for (uint32_t inputs : widths(type))
      for (uint32_t outputs : {1u, 17u, 50u}) {
        const Matrix m = matrix({type}, outputs, inputs, false, random);
        std::vector<std::byte> back(m.rows.size());
        const size_t row = row_bytes(type, inputs);
        for (uint32_t r = 0; r < outputs; r += 7)
          kernels().unpack_rows(m.packed, r, std::min(7u, outputs - r), back.data() + r * row);
        ASSERT_EQ(back, m.rows) << dtype_info(type).name << " " << outputs << "x" << inputs;
      }
}

TEST_P(Linear, GatherGivesDequantisedRows) {
  Random random(6);
  for (DType type : kAllTypes)
    for (uint32_t inputs : widths(type)) {
      const Matrix table = matrix({type}, 50, inputs, false, random),
                   positions = matrix({DType::f16}, 9, inputs, false, random);
      const uint32_t tokens[] = {49, 0, 17, 17, 16}, places[] = {0, 8, 3, 1, 2};
      for (bool with_positions : {false, true}) {
        Floats x(5 * inputs, kNan);
        shares(3, [&](Share share) {
          kernels().gather(
              {&table.packed, with_positions ? &positions.packed : nullptr, tokens, places, 5, x.data()},
              share);
        });
        for (uint32_t r = 0; r < 5; r++) {
          Floats want(inputs), place(inputs);
          dequantise(type, table.rows.data() + tokens[r] * row_bytes(type, inputs), want);
          dequantise(DType::f16, positions.rows.data() + places[r] * row_bytes(DType::f16, inputs), place);
          for (uint32_t i = 0; i < inputs; i++)
            ASSERT_TRUE(same(x[r * inputs + i], with_positions ? want[i] + place[i] : want[i]))
                << dtype_info(type).name;
        }
      }
    }
}

// Norms and activations are seen through the products that read them: bits of an operand show in every output.
TEST_P(Linear, NormsFeedEveryOperandKind) {
  Random random(7);
  for (uint32_t width : {1u, 7u, 31u, 32u, 33u, 96u, 256u, 576u})
    for (const Kind& operand :
         {Kind{DType::f32}, Kind{DType::bf16, Compute::bf16}, Kind{DType::q8_0}, Kind{DType::q6_k}}) {
      if (width % dtype_info(operand.type).block) continue;
      const Matrix m = matrix(operand, 5, width, false, random);
      const Floats weight = random.floats(width), bias = random.floats(width);
      for (NormKind kind : {NormKind::layer, NormKind::rms})
        for (uint32_t rows : {1u, 2u, 9u, 64u})
          for (bool biased : {false, true})
            for (bool indexed : {false, true}) {
              const Floats x = random.floats(70 * width, 3);
              std::vector<uint32_t> index(rows);
              for (uint32_t r = 0; r < rows; r++) index[r] = indexed ? random.below(70) : r;
              Memory memory = operand_memory(width, operand.operand(), rows);
              const Operand out = {memory.data(), rows, width, operand.operand()};
              const float* b = biased ? bias.data() : nullptr;
              shares(1 + rows % 3, [&](Share share) {
                kernels().norm(
                    {kind, 1e-5f, {weight.data(), b}, x.data(), indexed ? index.data() : nullptr, out},
                    share);
              });
              Floats y(rows * 5);
              kernels().linear({{&m.packed}, {y.data()}, {5}, 1, false, out}, {});
              for (uint32_t r = 0; r < rows; r++) {
                const Floats row(x.begin() + index[r] * width, x.begin() + (index[r] + 1) * width);
                const Floats normed = reference::norm(kind, 1e-5f, row, weight, b);
                for (uint32_t o = 0; o < 5; o++)
                  ASSERT_TRUE(same(y[r * 5 + o], expected(m, o, normed.data())))
                      << width << " rows " << rows << " row " << r;
              }
            }
    }
}

TEST_P(Linear, ActivationsFeedEveryOperandKind) {
  Random random(8);
  for (uint32_t width : {1u, 7u, 33u, 96u, 576u})
    for (const Kind& operand : {Kind{DType::f32}, Kind{DType::bf16, Compute::bf16}, Kind{DType::q4_1}}) {
      if (is_quantised(operand.type) && width % 32) continue;
      const Matrix m = matrix(operand, 5, width, false, random);
      for (Activation kind : {Activation::gelu_erf, Activation::gelu_tanh, Activation::silu_gated})
        for (uint32_t rows : {1u, 5u, 20u}) {
          const Floats gate = random.floats(rows * width, 9), up = random.floats(rows * width, 9);
          Memory memory = operand_memory(width, operand.operand(), rows);
          const Operand out = {memory.data(), rows, width, operand.operand()};
          shares(1 + rows % 4, [&](Share share) {
            kernels().activate({kind, kind == Activation::silu_gated ? gate.data() : nullptr, up.data(), out},
                               share);
          });
          Floats y(rows * 5);
          kernels().linear({{&m.packed}, {y.data()}, {5}, 1, false, out}, {});
          Floats active(rows * width);
          for (size_t i = 0; i < active.size(); i++) active[i] = reference::activate(kind, gate[i], up[i]);
          for (uint32_t i = 0; i < y.size(); i++)
            ASSERT_TRUE(same(y[i], expected(m, i % 5, &active[i / 5 * width])))
                << width << " rows " << rows << " " << i;
        }
    }
}

TEST_P(Linear, LogitHelpersEqualTheReference) {
  Random random(9);
  for (size_t n : {1u, 15u, 16u, 17u, 100u, 4099u}) {
    Floats x = random.floats(n, 30), want, out(n + 1, -7);
    x[n / 2] = -INFINITY;
    const float sum = kernels().exp_row(x.data(), n, 3.5f, 0.7f, out.data());
    EXPECT_TRUE(same(sum, reference::exp_row(x, 3.5f, 0.7f, &want)));
    for (size_t i = 0; i < n; i++) ASSERT_TRUE(same(out[i], want[i])) << i;
    EXPECT_EQ(out[n], -7);
    EXPECT_EQ(out[n / 2], 0);

    EXPECT_FALSE(kernels().all_finite(x.data(), n));
    x[n / 2] = std::numeric_limits<float>::max();
    EXPECT_TRUE(kernels().all_finite(x.data(), n));
    for (float bad : {kNan, INFINITY, -INFINITY})
      for (size_t at : {size_t(0), n / 2, n - 1}) {
        Floats y = x;
        y[at] = bad;
        EXPECT_FALSE(kernels().all_finite(y.data(), n)) << bad << " at " << at << " of " << n;
      }
  }
  EXPECT_TRUE(kernels().all_finite(nullptr, 0));
}

}  // namespace
}  // namespace riftco
