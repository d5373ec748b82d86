// The project's own elementary functions: bounds of error against long double, edges, and vector forms with the same bits.
#include "core/math.h"
#include "core/math_formulas.h"
#include "kernel_support.h"

namespace riftco {
namespace {

using Reference = long double (*)(long double);

float from_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// Error in units of the last place of the float nearest to the true value.
double ulps(float got, long double want) {
  const float nearest = float(want);
  if (std::isinf(nearest) || std::isnan(nearest)) return same(got, nearest) ? 0 : 1e9;
  const long double ulp = std::nextafter(std::abs(nearest), INFINITY) - std::abs(nearest);
  return double(std::abs(got - want) / ulp);
}
double ulps(double got, long double want) {
  const double nearest = double(want);
  if (std::isinf(nearest)) return got == nearest ? 0 : 1e9;
  const long double ulp = std::nextafter(std::abs(nearest), INFINITY) - std::abs(nearest);
  return double(std::abs(got - want) / ulp);
}

// The largest error over every 997th float from `low` to `high` (both positive), both signs where asked.
double worst(float (*f)(float), Reference want, float low, float high, bool both_signs) {
  double most = 0;
  for (uint32_t b = __builtin_bit_cast(uint32_t, low); b <= __builtin_bit_cast(uint32_t, high); b += 997)
    for (const float x : {from_bits(b), -from_bits(b)}) {
      if (x < 0 && !both_signs) continue;
      most = std::max(most, ulps(f(x), want(x)));
    }
  return most;
}

TEST(Math, FloatFunctionsStayWithinTheirStatedError) {
  EXPECT_LE(worst(math::exp, std::exp, 1e-10f, 104, true), 0.9);
  EXPECT_LE(worst(math::log, std::log, 1e-45f, 3.4e38f, false), 0.501);
  EXPECT_LE(worst(math::erf, std::erf, 1e-30f, 10, true), 1.0);
  EXPECT_LE(worst(math::tanh, std::tanh, 1e-30f, 20, true), 1.3);
}

TEST(Math, FloatEdges) {
  EXPECT_EQ(math::exp(0.0f), 1);
  EXPECT_EQ(math::exp(-0.0f), 1);
  EXPECT_EQ(math::exp(-INFINITY), 0);
  EXPECT_FALSE(std::signbit(math::exp(-INFINITY)));
  EXPECT_EQ(math::exp(-104.0f), 0);
  EXPECT_EQ(math::exp(-103.97f), 1e-45f);
  EXPECT_EQ(math::exp(INFINITY), INFINITY);
  EXPECT_EQ(math::exp(88.73f), INFINITY);
  EXPECT_TRUE(std::isfinite(math::exp(88.72f)));
  for (float (*f)(float) : {math::exp, math::log, math::erf, math::tanh}) EXPECT_TRUE(std::isnan(f(kNan)));
  EXPECT_EQ(math::log(0.0f), -INFINITY);
  EXPECT_EQ(math::log(1.0f), 0);
  EXPECT_EQ(math::log(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(math::log(-1.0f)));
  for (float (*f)(float) : {math::erf, math::tanh}) {
    EXPECT_EQ(f(INFINITY), 1);
    EXPECT_EQ(f(-INFINITY), -1);
    EXPECT_EQ(f(0.0f), 0);
    EXPECT_TRUE(std::signbit(f(-0.0f)));
    for (float x : {1e-40f, 0.5f, 0.62f, 0.63f, 0.99f, 1.01f, 3.0f, 5.0f}) EXPECT_EQ(f(-x), -f(x));
  }
}

TEST(Math, DoubleFunctionsStayWithinTheirStatedError) {
  std::mt19937_64 random(1);
  double exp_most = 0, log_most = 0, pow_most = 0, sine_most = 0;
  for (int i = 0; i < 300000; i++) {
    const double u = double(random() >> 11) * 0x1p-53, v = double(random() >> 11) * 0x1p-53;
    exp_most = std::max(exp_most, ulps(math::exp(1400 * u - 700), std::exp((long double)(1400 * u - 700))));
    const double x = std::exp(1400 * u - 700) * (i % 2 ? 1 : 1e-300 * 1e-10);
    if (x > 0) log_most = std::max(log_most, ulps(math::log(x), std::log((long double)x)));
    const double near_one = 0.5 + u;
    log_most = std::max(log_most, ulps(math::log(near_one), std::log((long double)near_one)));
    const double base = 1 + 1e6 * u, exponent = 2 * v - 2;
    pow_most = std::max(pow_most,
                        ulps(math::pow(base, exponent), std::pow((long double)base, (long double)exponent)));
    const double angle = i % 3 == 0   ? 1e7 * (2 * u - 1)
                         : i % 3 == 1 ? 10 * u
                                      : double(int(1e6 * u)) * 1.5707963267948966;
    double sine, cosine;
    math::sin_cos(angle, &sine, &cosine);
    sine_most = std::max({sine_most, double(std::abs(sine - std::sin((long double)angle))),
                          double(std::abs(cosine - std::cos((long double)angle)))});
  }
  EXPECT_LE(exp_most, 0.9);
  EXPECT_LE(log_most, 1);
  EXPECT_LE(pow_most, 32);
  EXPECT_LE(sine_most, 0x1p-52);
}

TEST(Math, DoubleEdges) {
  double sine, cosine;
  math::sin_cos(0, &sine, &cosine);
  EXPECT_EQ(sine, 0);
  EXPECT_EQ(cosine, 1);
  math::sin_cos(1.1e7, &sine, &cosine);
  EXPECT_TRUE(std::isnan(sine) && std::isnan(cosine));
  math::sin_cos(NAN, &sine, &cosine);
  EXPECT_TRUE(std::isnan(sine));
  EXPECT_EQ(math::exp(-1000.0), 0);
  EXPECT_EQ(math::exp(710.0), INFINITY);
  EXPECT_TRUE(std::isnan(math::exp(double(NAN))));
  EXPECT_EQ(math::log(0.0), -INFINITY);
  EXPECT_EQ(math::log(double(INFINITY)), INFINITY);
  EXPECT_TRUE(std::isnan(math::log(-1.0)));
  EXPECT_EQ(math::pow(10000, 0), 1);
  EXPECT_NEAR(math::pow(10000, -1), 1e-4, 1e-18);
}

// The kernels' vector forms, through the kernels that use them.
class VectorMath : public KernelTest {};
RIFTCO_ALL_INSTRUCTION_SETS(VectorMath);

std::vector<float> every_float(uint32_t step) {
  std::vector<float> x;
  for (uint64_t b = 0; b < uint64_t(1) << 32; b += step) x.push_back(from_bits(uint32_t(b)));
  for (float edge :
       {0.0f, -0.0f, 88.72f, 88.73f, -103.97f, -104.0f, 0.625f, 1.0f, 4.0f, INFINITY, -INFINITY, kNan})
    x.push_back(edge);
  return x;
}

TEST_P(VectorMath, ExpHasTheBitsOfTheScalarForm) {
  const std::vector<float> x = every_float(1009);
  std::vector<float> out(x.size());
  kernels().exp_row(x.data(), x.size(), 0, 1, out.data());
  for (size_t i = 0; i < x.size(); i++)
    ASSERT_TRUE(same(out[i], math::exp(x[i]))) << x[i] << ": " << out[i] << " not " << math::exp(x[i]);
}

// A unit matrix shows an activation's bits, but for the sign of zero; values whose square overflows are left out.
TEST_P(VectorMath, ActivationsHaveTheBitsOfTheScalarForms) {
  const uint32_t width = 64;
  const PackedMatrix unit = {DType::f32, width, width, nullptr, nullptr};
  Memory packed(kernels().packed_bytes(unit.type, width, width));
  std::memset(packed.data(), 0, packed.size());
  PackedMatrix m = unit;
  m.data = packed.data();
  for (uint32_t r = 0; r < width; r++) {
    float row[width] = {};
    row[r] = 1;
    kernels().pack_rows(m, r, 1, reinterpret_cast<const std::byte*>(row));
  }
  std::vector<float> x;
  for (float v : every_float(20011))
    if (std::abs(v) < 1e12f) x.push_back(v);
  x.resize(x.size() / width * width);
  const uint32_t rows = uint32_t(x.size() / width);
  Memory memory(kernels().operand_bytes(kMaxBlockRows, width, kOperandFloat));
  for (Activation kind : {Activation::gelu_erf, Activation::gelu_tanh, Activation::silu_gated})
    for (uint32_t first = 0; first < rows; first += kMaxBlockRows) {
      const uint32_t n = std::min(kMaxBlockRows, rows - first);
      const float* in = x.data() + size_t(first) * width;
      const std::vector<float> ones(size_t(n) * width, 1.0f);
      const bool gated = kind == Activation::silu_gated;
      const Operand out = {memory.data(), n, width, kOperandFloat};
      kernels().activate({kind, gated ? in : nullptr, gated ? ones.data() : in, out}, {});
      std::vector<float> y(size_t(n) * width);
      kernels().linear({{&m}, {y.data()}, {width}, 1, false, out}, {});
      for (size_t i = 0; i < y.size(); i++) {
        const float want = reference::activate(kind, in[i], gated ? 1 : in[i]);
        ASSERT_TRUE(same(y[i], want) || (y[i] == 0 && want == 0))
            << int(kind) << " of " << in[i] << ": " << y[i] << " not " << want;
      }
    }
}

}  // namespace
}  // namespace riftco
