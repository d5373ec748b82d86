// Rotation, cache pages and attention of every instruction set against the plain loops, to the last bit.
#include "core/math.h"
#include "kernel_support.h"

namespace riftco {
namespace {

using reference::Floats;

struct Shape {
  uint32_t head_width, kv_heads, group, page_size, pairs;
  uint32_t window = kAllKeys;
  bool norms = false;  // of q and k
  DType element = DType::f32;
};

const DType kElements[] = {DType::f32, DType::f16, DType::bf16};

// One sequence's cache, filled position by position through `store`. What was not stored is NaN.
class Sequence {
 public:
  Sequence(const KernelTable& kernels, const Shape& s, uint32_t length, uint64_t seed)
      : kernels_(kernels),
        shape_(s),
        geometry_{kLayers, s.kv_heads, s.head_width, s.page_size, s.element},
        random_(seed) {
    for (uint32_t i = 0; i < (length + s.page_size - 1) / s.page_size; i++)
      pages_.emplace_back(kernels.kv_page_bytes(geometry_));
    for (const Memory& page : pages_) addresses_.push_back(page.data());
    view_ = {addresses_.data(), &geometry_};
    for (uint32_t i = 0; i < s.pairs; i++) frequencies_.push_back(math::pow(10000, -double(i) / s.pairs));
    q_ = random_.floats(size_t(length) * heads() * s.head_width, 2);
    k_ = random_.floats(size_t(length) * s.kv_heads * s.head_width, 2);
    v_ = random_.floats(size_t(length) * s.kv_heads * s.head_width, 2);
    q_norm_ = random_.floats(s.head_width, 2), k_norm_ = random_.floats(s.head_width, 2);
    for (uint32_t p = 0; p < length; p++) rows_.push_back({&view_, p});
  }

  static constexpr uint32_t kLayers = 2, kLayer = 1;
  static constexpr double kScale = 1.1;     // of cosines and sines
  static constexpr float kEpsilon = 1e-3f;  // of the norms of q and k
  uint32_t heads() const { return shape_.kv_heads * shape_.group; }
  const CacheView& view() const { return view_; }
  float scale() const { return 1.0f / std::sqrt(float(shape_.head_width)); }

  // Stores positions [first, first + count), rotating q_ and k_ in place, with several workers.
  bool store(uint32_t first, uint32_t count, uint32_t workers) {
    std::vector<uint32_t> positions;
    for (uint32_t i = 0; i < count; i++) positions.push_back(first + i);
    Floats cos_sin(size_t(count) * 2 * shape_.pairs, kNan);
    bool finite = true;
    for (uint32_t w = 0; w < workers; w++)
      if (shape_.pairs)
        kernels_.rotary({frequencies_.data(), shape_.pairs, kScale, positions.data(), count, cos_sin.data()},
                        {w, workers});
    for (uint32_t w = 0; w < workers; w++)
      finite &=
          kernels_.store({rows_.data() + first, count, kLayer, heads(), shape_.kv_heads, shape_.head_width,
                          shape_.norms ? q_norm_.data() : nullptr, shape_.norms ? k_norm_.data() : nullptr,
                          kEpsilon, shape_.pairs, cos_sin.data(), query(first), key(first), value(first)},
                         {w, workers});
    return finite;
  }

  // Context [rows][heads * head_width] of rows at positions [first, first + rows).
  Floats attend(uint32_t first, uint32_t rows, bool split) {
    const uint32_t segments = (first + rows - 1) / kKeySegment + 1, slots_of_unit = rows * shape_.group;
    Floats context(size_t(rows) * heads() * shape_.head_width, kNan);
    Memory scratch(kernels_.attention_scratch_bytes(shape_.group, shape_.head_width));
    Memory partials(size_t(segments) * slots_of_unit * kernels_.attention_slot_floats(shape_.head_width) *
                    sizeof(float));
    const AttentionArgs args = {
        rows_.data() + first, kLayer,  heads(),      shape_.kv_heads, shape_.head_width,
        shape_.window,        scale(), query(first), context.data(),  partials.floats(),
        scratch.data()};
    for (uint32_t h = 0; h < shape_.kv_heads; h++) {
      std::vector<AttentionUnit> units;
      if (!split) {
        kernels_.attend(args, {0, rows, h, 0, segments, -1});
        continue;
      }
      for (uint32_t s = 0; s < segments; s++)
        units.push_back({0, rows, h, s, s + 1, int32_t(s * slots_of_unit)});
      for (uint32_t s = segments; s-- > 0;) kernels_.attend(args, units[s]);  // in any order
      kernels_.merge({units.data(), segments, &args});
    }
    return context;
  }

  // The same by plain loops, for one row.
  Floats expected(uint32_t position) {
    const uint32_t width = shape_.head_width;
    Floats out;
    for (uint32_t h = 0; h < heads(); h++) {
      Floats keys, values;
      for (uint32_t p = 0; p <= position; p++) {
        const size_t at = (size_t(p) * shape_.kv_heads + h / shape_.group) * width;
        for (size_t d = 0; d < width; d++) {
          keys.push_back(reference::rounded(shape_.element, k_[at + d]));
          values.push_back(reference::rounded(shape_.element, v_[at + d]));
        }
      }
      const Floats o = reference::attention(query(position) + h * width, keys.data(), values.data(),
                                            position + 1, shape_.window, width, scale());
      out.insert(out.end(), o.begin(), o.end());
    }
    return out;
  }

  float* query(uint32_t p) { return q_.data() + size_t(p) * heads() * shape_.head_width; }
  float* key(uint32_t p) { return k_.data() + size_t(p) * shape_.kv_heads * shape_.head_width; }
  float* value(uint32_t p) { return v_.data() + size_t(p) * shape_.kv_heads * shape_.head_width; }
  const std::vector<double>& frequencies() const { return frequencies_; }
  // A head of q or k of position p, as store is to make it, from what it was.
  void transform(float* x, bool is_key, uint32_t p) const {
    const Floats before(x, x + shape_.head_width);
    if (shape_.norms) {
      const Floats normed =
          reference::norm(NormKind::rms, kEpsilon, before, is_key ? k_norm_ : q_norm_, nullptr);
      std::copy(normed.begin(), normed.end(), x);
    }
    reference::rotate(x, reference::rotary(frequencies_, p, kScale));
  }
  AttentionRow& row(uint32_t p) { return rows_[p]; }

 private:
  const KernelTable& kernels_;
  Shape shape_;
  KvGeometry geometry_;
  Random random_;
  std::vector<Memory> pages_;
  std::vector<std::byte*> addresses_;
  CacheView view_;
  std::vector<double> frequencies_;
  Floats q_, k_, v_, q_norm_, k_norm_;
  std::vector<AttentionRow> rows_;
};

class Attention : public KernelTest {
 protected:
  // Rows at [first, first + rows), all positions that they see stored in uneven pieces; the other slots stay NaN.
  void check(const Shape& s, uint32_t first, uint32_t rows, bool split, uint64_t seed) {
    Sequence sequence(kernels(), s, first + rows, seed);
    Random random(seed);
    for (uint32_t p = first >= s.window ? first - s.window + 1 : 0; p < first + rows;) {
      const uint32_t n = std::min(first + rows - p, 1 + random.below(70));
      ASSERT_TRUE(sequence.store(p, n, 1 + random.below(4)));
      p += n;
    }
    const Floats got = sequence.attend(first, rows, split);
    const size_t width = got.size() / rows;
    for (uint32_t r = 0; r < rows;
         r += std::max(1u, rows - 1)) {  // the first and the last row; the others lie between
      const Floats want = sequence.expected(first + r);
      for (size_t i = 0; i < width; i++)
        ASSERT_TRUE(same(got[r * width + i], want[i]))
            << "width " << s.head_width << " group " << s.group << " page " << s.page_size << " "
            << dtype_info(s.element).name << " position " << first + r << " row " << r << " of " << rows
            << " split " << split << " dim " << i << ": " << got[r * width + i] << " not " << want[i];
    }
  }
};
RIFTCO_ALL_INSTRUCTION_SETS(Attention);

TEST_P(Attention, EveryHeadWidthGroupAndPageSizeEqualsTheReference) {
  uint64_t seed = 0;
  for (uint32_t head_width : {1u, 4u, 20u, 64u, 80u, 128u, 256u})
    for (uint32_t group : {1u, 2u, 3u, 7u, 8u}) {
      static constexpr uint32_t kPages[] = {1, 3, 16, 24, 64, 500};
      const uint32_t page = kPages[seed % 6], other = kPages[(seed + 3) % 6];
      for (DType element : kElements) {
        check({head_width, 2, group, page, 0, kAllKeys, false, element}, 60, 7, seed % 2, seed);
        check({head_width, 1, group, other, head_width / 2, kAllKeys, false, element}, 0,
              1 + uint32_t(seed % 16), false, seed);
      }
      seed++;
    }
}

TEST_P(Attention, EveryPositionAroundTileAndSegmentBounds) {
  for (uint32_t page : {1u, 3u, 16u, 24u, 64u, 1000u})
    for (uint32_t first : {0u, 1u, 14u, 15u, 16u, 62u, 63u, 64u, 65u, 254u, 255u, 256u, 257u, 511u, 512u})
      for (bool split : {false, true})
        check({20, 1, 2, page, 10, kAllKeys, false, kElements[(first + split) % 3]}, first, 1 + first % 5,
              split, first + page);
}

TEST_P(Attention, EveryRowCountOfAUnit) {
  for (uint32_t rows = 1; rows <= kMaxUnitRows; rows++)
    for (uint32_t group : {1u, 3u}) {
      check({64, 1, group, 16, 32}, 250, rows, true, rows);
      check({64, 1, group, 16, 32}, 56, rows, false, rows);
    }
}

TEST_P(Attention, RandomShapes) {
  Random random(99);
  for (int i = 0; i < 60; i++) {
    static constexpr uint32_t kWidths[] = {2, 16, 20, 48, 64, 96}, kGroups[] = {1, 2, 3, 4, 5, 9},
                              kPages[] = {1, 5, 16, 17, 32, 77};
    const uint32_t width = random.pick(kWidths);
    check({width, 1 + random.below(3), random.pick(kGroups), random.pick(kPages), random.below(width / 2 + 1),
           kAllKeys, false, random.pick(kElements)},
          random.below(600), 1 + random.below(kMaxUnitRows), random.below(2), uint64_t(i));
  }
}

TEST_P(Attention, WindowsHideWhatLiesBeforeThem) {
  for (uint32_t window : {1u, 2u, 15u, 16u, 17u, 63u, 64u, 65u, 200u, 256u, 257u, 600u})
    for (uint32_t first : {0u, 14u, 62u, 64u, 250u, 256u, 300u, 511u, 530u})
      for (bool split : {false, true})
        for (uint32_t rows : {1u, 3u, kMaxUnitRows}) {
          static constexpr uint32_t kPages[] = {1, 3, 16, 24, 64, 1000};
          const uint32_t seed = window + first + rows;
          check({20, 1, 1 + seed % 3, kPages[seed % 6], 10, window, false, kElements[seed % 3]}, first, rows,
                split, seed);
        }
}

TEST_P(Attention, HeadsOfAnyWidthAreNormalised) {
  for (uint32_t head_width : {1u, 4u, 15u, 20u, 64u, 130u}) {
    const Shape shape = {head_width, 2, 2, 16, head_width / 2, kAllKeys, true};
    Sequence sequence(kernels(), shape, 3, head_width), before(kernels(), shape, 3, head_width);
    ASSERT_TRUE(sequence.store(0, 3, 2));
    for (uint32_t p = 0; p < 3; p++)
      for (uint32_t h = 0; h < 4; h++) {
        sequence.transform(before.query(p) + head_width * h, false, p);
        for (uint32_t i = 0; i < head_width; i++)
          ASSERT_TRUE(same(sequence.query(p)[head_width * h + i], before.query(p)[head_width * h + i]))
              << head_width << " " << p << " " << h << " " << i;
      }
  }
}

// All rows of a unit, not only its first and last.
TEST_P(Attention, RowsOfAUnitDoNotTouchEachOther) {
  Sequence sequence(kernels(), {20, 2, 3, 16, 10}, 270, 5);
  ASSERT_TRUE(sequence.store(0, 270, 2));
  const Floats got = sequence.attend(254, 16, false);
  for (uint32_t r = 0; r < 16; r++) {
    const Floats want = sequence.expected(254 + r);
    for (size_t i = 0; i < want.size(); i++)
      ASSERT_TRUE(same(got[r * want.size() + i], want[i])) << r << " " << i;
  }
}

TEST_P(Attention, StoreRotatesAndReadReturnsWhatWasStored) {
  for (uint32_t pairs : {0u, 1u, 10u, 16u, 20u, 32u})
    for (uint32_t page : {1u, 16u, 24u}) {
      const DType element = kElements[(pairs + page) % 3];
      const Shape shape = {64, 3, 2, page, pairs, kAllKeys, page != 16, element};
      Sequence sequence(kernels(), shape, 40, pairs), before(kernels(), shape, 40, pairs);
      ASSERT_TRUE(sequence.store(0, 33, 3));
      for (uint32_t p = 0; p < 33; p++) {
        for (uint32_t h = 0; h < 6; h++) sequence.transform(before.query(p) + 64 * h, false, p);
        for (uint32_t h = 0; h < 3; h++) sequence.transform(before.key(p) + 64 * h, true, p);
        Floats k(3 * 64), v(3 * 64);
        kernels().kv_read(sequence.view(), Sequence::kLayer, p, k.data(), v.data());
        for (uint32_t i = 0; i < 6 * 64; i++)
          ASSERT_TRUE(same(sequence.query(p)[i], before.query(p)[i])) << pairs << " " << p << " " << i;
        for (uint32_t i = 0; i < 3 * 64; i++) {
          ASSERT_TRUE(same(sequence.key(p)[i], before.key(p)[i])) << pairs << " " << p << " " << i;
          ASSERT_TRUE(same(k[i], reference::rounded(element, before.key(p)[i])))
              << pairs << " " << p << " " << i;
          ASSERT_TRUE(same(v[i], reference::rounded(element, before.value(p)[i])))
              << pairs << " " << p << " " << i;
        }
      }
    }
}

TEST_P(Attention, StoreReportsValuesThatAreNotFinite) {
  for (DType element : kElements)
    for (float bad : {kNan, INFINITY, -INFINITY})
      for (bool in_key : {false, true})
        for (uint32_t at : {0u, 19u, 39u}) {
          Sequence sequence(kernels(), {20, 2, 1, 16, 0, kAllKeys, false, element}, 5, 1);
          (in_key ? sequence.key(4) : sequence.value(4))[at] = bad;
          EXPECT_TRUE(sequence.store(0, 4, 2));
          EXPECT_FALSE(sequence.store(0, 5, 2));
        }
}

// The values around every rounding decision of the 16-bit types: ties to even, the largest, subnormals, zeros.
TEST_P(Attention, StoreRoundsToNearestEvenAndReportsOverflow) {
  for (DType element : {DType::f16, DType::bf16}) {
    Floats edges = {0.0f, -0.0f, 1e-45f, -1e-40f, 0x1p-126f, 0x1.fffffep+127f, 65504, 65519.996f, 65520};
    for (uint32_t bits = 0; bits < 0x7C00;
         bits += 97) {  // a stored value, the tie above it and its neighbours
      const bool half = element == DType::f16;
      const auto stored = [half](uint32_t b) {
        return half ? half_to_float(uint16_t(b)) : bf16_to_float(uint16_t(b));
      };
      const float tie = float((double(stored(bits)) + double(stored(bits + 1))) / 2);
      for (float value : {stored(bits), tie, std::nextafterf(tie, 0), std::nextafterf(tie, INFINITY)})
        edges.insert(edges.end(), {value, -value});
    }
    for (float edge : edges) {
      Sequence sequence(kernels(), {20, 1, 1, 16, 0, kAllKeys, false, element}, 1, 1);
      sequence.key(0)[17] = sequence.value(0)[3] = edge;
      const float want = reference::rounded(element, edge);
      ASSERT_EQ(sequence.store(0, 1, 1), std::isfinite(want)) << dtype_info(element).name << " " << edge;
      if (!std::isfinite(want)) continue;
      Floats k(20), v(20);
      kernels().kv_read(sequence.view(), Sequence::kLayer, 0, k.data(), v.data());
      ASSERT_TRUE(same(k[17], want)) << dtype_info(element).name << " " << edge << ": " << k[17];
      ASSERT_TRUE(same(v[3], want)) << dtype_info(element).name << " " << edge << ": " << v[3];
    }
  }
}

// Queries that are not finite spoil their own row; keys a row does not see never do.
TEST_P(Attention, NonFiniteQueriesSpoilTheirOwnRowOnly) {
  Sequence sequence(kernels(), {20, 1, 2, 16, 0}, 80, 3);
  ASSERT_TRUE(sequence.store(0, 80, 1));
  sequence.query(70)[3] = kNan;
  const Floats got = sequence.attend(64, 16, false);
  for (uint32_t r = 0; r < 16; r++)
    for (uint32_t i = 0; i < 40; i++)
      ASSERT_EQ(std::isfinite(got[r * 40 + i]), r != 6 || i >= 20) << r << " " << i;
}

// Scores far apart: probabilities underflow to subnormals and to zero; zeros keep their sign.
TEST_P(Attention, ExtremeScoresEqualTheReference) {
  for (float size : {0.0f, -0.0f, 1e-30f, 40.0f, 1e4f, 1e18f}) {
    Sequence sequence(kernels(), {4, 1, 1, 16, 0}, 300, 4);
    for (uint32_t p = 0; p < 300; p++)
      for (uint32_t d = 0; d < 4; d++)
        sequence.query(p)[d] *= size, sequence.value(p)[d] *= p % 3 ? 1 : -0.0f;
    ASSERT_TRUE(sequence.store(0, 300, 1));
    const Floats got = sequence.attend(290, 10, true);
    for (uint32_t r = 0; r < 10; r++) {
      const Floats want = sequence.expected(290 + r);
      for (uint32_t i = 0; i < 4; i++)
        ASSERT_TRUE(same(got[r * 4 + i], want[i])) << size << " " << r << " " << i;
    }
  }
}

// A sum that underflows to -0 stays -0 in rows that do not see the later segments of their unit.
TEST_P(Attention, SegmentsThatARowDoesNotSeeAreNotFolded) {
  for (bool split : {false, true}) {
    Sequence sequence(kernels(), {4, 1, 1, 16, 0}, 260, 6);
    for (uint32_t p = 0; p < 260; p++)
      for (uint32_t d = 0; d < 4; d++) {
        sequence.query(p)[d] = 10;
        sequence.key(p)[d] = p == 0 ? 5 : 0;
        sequence.value(p)[d] = p == 0 ? 0.0f : -1e-45f;
      }
    ASSERT_TRUE(sequence.store(0, 260, 1));
    const Floats got = sequence.attend(250, 10, split);
    for (uint32_t r = 0; r < 10; r++) {
      const Floats want = sequence.expected(250 + r);
      for (uint32_t i = 0; i < 4; i++) ASSERT_TRUE(same(got[r * 4 + i], want[i])) << split << " " << r;
    }
    EXPECT_TRUE(std::signbit(got[0]));
  }
}

}  // namespace
}  // namespace riftco
