#include "reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/math.h"

namespace riftco::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// 16 lanes and the fixed tree.
struct Lanes {
  float v[16] = {};
  float sum() const {
    float t[16];
    std::copy(v, v + 16, t);
    for (int half : {8, 4, 2, 1})
      for (int i = 0; i < half; i++) t[i] = t[i] + t[i + half];
    return t[0];
  }
};

float larger(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<float>::quiet_NaN();
  return std::max(a, b);
}

uint16_t u16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

// What the products take of 32 inputs of a quantised row: integers, a scale for each half, what is added.
struct Part {
  int q[32];
  float scale[2];
  float minimum = 0;
};

int bits(const std::byte* p, int at, int shift, int mask) { return int(p[at]) >> shift & mask; }
float half(const std::byte* p) { return half_to_float(u16(p)); }

Part part_of(DType type, const std::byte* w, int part) {
  Part out;
  const auto six = [w, part](int first) {  // number `part` of the 8 that begin at byte 4 + first
    if (part < 4) return bits(w, 4 + first + part, 0, 63);
    return bits(w, 8 + part, first, 15) | bits(w, first + part, 6, 3) << 4;
  };
  const float d = half(w);
  out.scale[0] = out.scale[1] = d;
  for (int i = 0; i < 32; i++) {
    const int nibble_shift = i < 16 ? 0 : 4, part_shift = 4 * (part % 2), at = 32 * (part / 2) + i;
    switch (type) {
      case DType::q8_0:
        out.q[i] = int8_t(w[2 + i]);
        break;
      case DType::q4_0:
        out.q[i] = bits(w, 2 + i % 16, nibble_shift, 15) - 8;
        break;
      case DType::q4_1:
        out.q[i] = bits(w, 4 + i % 16, nibble_shift, 15);
        break;
      case DType::q5_0:
        out.q[i] = (bits(w, 6 + i % 16, nibble_shift, 15) | bits(w, 2 + i / 8, i % 8, 1) << 4) - 16;
        break;
      case DType::q5_1:
        out.q[i] = bits(w, 8 + i % 16, nibble_shift, 15) | bits(w, 4 + i / 8, i % 8, 1) << 4;
        break;
      case DType::q4_k:
        out.q[i] = bits(w, 16 + at, part_shift, 15);
        break;
      case DType::q5_k:
        out.q[i] = bits(w, 48 + at, part_shift, 15) | bits(w, 16 + i, part, 1) << 4;
        break;
      default:  // q6_k
        out.q[i] = (bits(w, 64 * (part / 4) + 32 * (part % 2) + i, part % 4 < 2 ? 0 : 4, 15) |
                    bits(w, 128 + 32 * (part / 4) + i, 2 * (part % 4), 3) << 4) -
                   32;
    }
  }
  if (type == DType::q4_1 || type == DType::q5_1) out.minimum = half(w + 2);
  if (type == DType::q4_k || type == DType::q5_k) {
    out.scale[0] = out.scale[1] = d * float(six(0));
    out.minimum = -(half(w + 2) * float(six(4)));
  }
  if (type == DType::q6_k)
    for (int h = 0; h < 2; h++) out.scale[h] = half(w + 208) * float(int8_t(w[192 + 2 * part + h]));
  return out;
}

float quantised_dot(DType type, const std::byte* w, const float* x, uint32_t inputs) {
  const DTypeInfo& info = dtype_info(type);
  const int halves = type == DType::q6_k ? 2 : 1;
  float a = 0;
  for (uint32_t k = 0; k < inputs; k += 32) {
    const Block b = quantise(x + k);
    const Part part = part_of(type, w + k / info.block * info.bytes, int(k % info.block / 32));
    for (int h = 0; h < halves; h++) {
      int32_t dot = 0;
      for (int i = 32 / halves * h; i < 32 / halves * (h + 1); i++) dot += part.q[i] * b.q[i];
      a = std::fma(float(dot), part.scale[h] * b.scale, a);
    }
    const bool has_minimum =
        type == DType::q4_1 || type == DType::q5_1 || type == DType::q4_k || type == DType::q5_k;
    if (has_minimum) a = std::fma(part.minimum, b.scale * float(b.sum), a);
  }
  return a;
}

struct Segment {
  float m = -kInfinity, l = 0;
  Floats o;
};

// Keys [from, count) of a segment.
Segment segment(const float* q, const float* keys, const float* values, uint32_t from, uint32_t count,
                uint32_t width, float scale) {
  Segment s;
  s.o.assign(width, 0);
  for (uint32_t first = from / kKeyTile * kKeyTile; first < count; first += kKeyTile) {
    const uint32_t begin = std::max(from, first) - first, n = std::min(kKeyTile, count - first);
    Floats p(n);
    float m = s.m;
    for (uint32_t j = begin; j < n; j++) {
      float score = 0;
      for (uint32_t d = 0; d < width; d++)
        score = std::fma(q[d] * scale, keys[(first + j) * width + d], score);
      p[j] = score;
      m = larger(m, score);
    }
    const float c = math::exp(s.m - m);
    Lanes total;
    for (uint32_t j = begin; j < n; j++) {
      p[j] = math::exp(p[j] - m);
      total.v[j % 16] = total.v[j % 16] + p[j];
    }
    s.l = std::fma(s.l, c, total.sum());
    s.m = m;
    for (uint32_t d = 0; d < width; d++) {
      s.o[d] = s.o[d] * c;
      for (uint32_t j = begin; j < n; j++) s.o[d] = std::fma(p[j], values[(first + j) * width + d], s.o[d]);
    }
  }
  return s;
}

}  // namespace

Block quantise(const float* x) {
  Block b = {};
  float most = 0;
  for (int i = 0; i < 32; i++) most = larger(most, std::abs(x[i]));
  if (!std::isfinite(most)) {
    b.scale = std::numeric_limits<float>::quiet_NaN();
    return b;
  }
  if (most < 0x1p-100f) return b;
  b.scale = most * (1.0f / 127.0f);
  for (int i = 0; i < 32; i++) {
    b.q[i] = int8_t(std::clamp(std::nearbyint(x[i] * (127.0f / most)), -127.0f, 127.0f));
    b.sum += b.q[i];
  }
  return b;
}

float dot(DType type, const std::byte* weights, const float* x, uint32_t inputs) {
  if (is_quantised(type)) return quantised_dot(type, weights, x, inputs);
  Floats w(inputs);
  dequantise(type, weights, w);
  float a = 0;
  for (uint32_t k = 0; k < inputs; k++) a = std::fma(x[k], w[k], a);
  return a;
}

Floats norm(NormKind kind, float epsilon, const Floats& x, const Floats& weight, const float* bias) {
  const float n = float(x.size());
  float mean = 0;
  if (kind == NormKind::layer) {
    Lanes total;
    for (size_t i = 0; i < x.size(); i++) total.v[i % 16] = total.v[i % 16] + x[i];
    mean = total.sum() / n;
  }
  Lanes squares;
  for (size_t i = 0; i < x.size(); i++) {
    const float d = kind == NormKind::layer ? x[i] - mean : x[i];
    squares.v[i % 16] = std::fma(d, d, squares.v[i % 16]);
  }
  const float inverse = 1.0f / std::sqrt(squares.sum() / n + epsilon);
  Floats out(x.size());
  for (size_t i = 0; i < x.size(); i++) {
    const float d = kind == NormKind::layer ? x[i] - mean : x[i];
    out[i] = d * inverse * weight[i];
    if (bias) out[i] = out[i] + bias[i];
  }
  return out;
}

float activate(Activation kind, float gate, float up) {
  switch (kind) {
    case Activation::gelu_erf:
      return 0.5f * up * (1.0f + math::erf(up * 0.707106781f));
    case Activation::gelu_tanh:
      return 0.5f * up * (1.0f + math::tanh(0.797884561f * std::fma(0.044715f * up * up, up, up)));
    case Activation::silu_gated:
      return gate / (1.0f + math::exp(-gate)) * up;
  }
  return 0;
}

Floats rotary(const std::vector<double>& inverse_frequencies, uint32_t position, double scale) {
  const size_t pairs = inverse_frequencies.size();
  Floats out(2 * pairs);
  for (size_t i = 0; i < pairs; i++) {
    double sine, cosine;
    math::sin_cos(double(position) * inverse_frequencies[i], &sine, &cosine);
    out[i] = float(scale * cosine), out[pairs + i] = float(scale * sine);
  }
  return out;
}

void rotate(float* x, const Floats& cos_sin) {
  const size_t pairs = cos_sin.size() / 2;
  for (size_t i = 0; i < pairs; i++) {
    const float a = x[i], b = x[pairs + i], c = cos_sin[i], s = cos_sin[pairs + i];
    x[i] = a * c - b * s;
    x[pairs + i] = b * c + a * s;
  }
}

// The nearest value of 11 (f16) or 8 (bf16) significant bits, ties to even, by arithmetic in double.
float rounded(DType element, float x) {
  if (element == DType::f32 || x == 0 || !std::isfinite(x)) return x;
  const int precision = element == DType::f16 ? 11 : 8, least = element == DType::f16 ? -14 : -126;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(x), least) - (precision - 1));
  const double nearest = std::nearbyint(double(x) / unit) * unit;
  const double most = element == DType::f16 ? 65504 : 0x1.fep127;
  return std::abs(nearest) > most ? std::copysign(kInfinity, x) : float(std::copysign(nearest, x));
}

Floats attention(const float* q, const float* keys, const float* values, uint32_t count, uint32_t window,
                 uint32_t head_width, float scale) {
  Segment a;
  const uint32_t seen = count > window ? count - window : 0;
  for (uint32_t first = seen / kKeySegment * kKeySegment; first < count; first += kKeySegment) {
    const uint32_t n = std::min(kKeySegment, count - first);
    const Segment b = segment(q, keys + first * head_width, values + first * head_width,
                              std::max(seen, first) - first, n, head_width, scale);
    if (first <= seen) {
      a = b;
      continue;
    }
    const float m = larger(a.m, b.m), ca = math::exp(a.m - m), cb = math::exp(b.m - m);
    a.l = std::fma(a.l, ca, b.l * cb);
    for (uint32_t d = 0; d < head_width; d++) a.o[d] = std::fma(a.o[d], ca, b.o[d] * cb);
    a.m = m;
  }
  for (float& o : a.o) o = o / a.l;
  return a.o;
}

float exp_row(const Floats& x, float shift, float scale, Floats* out) {
  Lanes total;
  out->resize(x.size());
  for (size_t i = 0; i < x.size(); i++) {
    (*out)[i] = math::exp((x[i] - shift) * scale);
    total.v[i % 16] = total.v[i % 16] + (*out)[i];
  }
  return total.sum();
}

}  // namespace riftco::reference
