// The kernel table: everything a device computes, with shapes and contract, on one page.
//
// Numerics (the same bits on every instruction set, for finite results):
//   - an output element depends on its own row only and is reduced in one fixed order, whatever the number of
//     rows, the page size, the share of a worker or the instruction set;
//   - linear, float weights (f16 and bf16 widened): a = fma(x[k], w[k], a) for k = 0, 1, ...; then a + bias;
//   - linear, bf16 weights with compute bf16: the same with x rounded to bf16, nearest even. Numbers below 2^-126 may count as
//     zero, as they do in a processor's own products of bf16;
//   - linear, quantised weights: activations as int8 per block of 32 (below), the integer dot product I of a block with
//     the integers of the weights is exact; blocks in k order; then a + bias. With the letters of core/dtype.h:
//       q4_0, q5_0, q8_0   a = fma(float(I), d * s, a), I over q - 8, q - 16, q
//       q4_1, q5_1         the same over q, then a = fma(m, s * float(sum), a)
//       q4_k, q5_k         a = fma(float(I), (d * s[p]) * s, a), then a = fma(n * m[p], -(s * float(sum)), a)
//       q6_k               twice for 16 inputs each, a = fma(float(I), (d * s[]) * s, a), I over q - 32
//   - int8 activations of a block of 32: amax = max |x|; s = amax * (1/127), q = round to nearest even of
//     x * (127 / amax) clamped to +-127, sum = sum of q. amax below 2^-100: s = 0 and q = 0. Not finite:
//     s = NaN, q = 0;
//   - sums over a row (norms, probabilities) use 16 virtual lanes, lane i % 16, and the tree 8+8, 4+4, 2+2,
//     1+1; a short last group adds nothing to the missing lanes. Sums of squares are fused multiply-adds,
//     plain sums are adds;
//   - attention: a score is one chain of fused multiply-adds over the head's dims of (q * scale) and k. Keys
//     are walked in tiles of 64 aligned to absolute positions; segments of 256 keys, aligned too, start empty
//     (m = -inf, l = 0, O = 0):
//       tile:  m' = max(m, scores); c = exp(m - m'); p = exp(score - m'); l = fma(l, c, sum p);
//              O[dim] = O[dim] * c, then one chain fma(p[j], v[j][dim], O) over the tile's keys
//       fold of two segments in order, also on one thread:
//              m' = max(a.m, b.m); ca = exp(a.m - m'), cb = exp(b.m - m');
//              l = fma(a.l, ca, b.l * cb); O = fma(a.O, ca, b.O * cb);   the row's result is O / l
//     a row sees the newest `window` keys up to its own; its first segment is the one of the first key that it sees;
//     other keys never enter (not multiplied by zero); exp of minus infinity is exactly 0, NaN stays NaN;
//   - keys and values of f16 and bf16 caches are rounded to nearest even when they are stored; attention reads
//     every one back from its page, those of the same step too, and widens it exactly;
//   - exp, erf, tanh, sin, cos are the project's own (core/math.h), with written fused multiply-adds.
//
// Work split: in a step every worker of the region calls the same kernel with its Share and does that part, or takes shares
// of more parts than there are workers, one after the other; parts never split a reduction. No kernel allocates, throws or
// synchronises; the executor puts barriers between them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/kv_geometry.h"
#include "core/step_model.h"

namespace riftco {

struct Share {
  uint32_t index = 0, count = 1;
};

inline constexpr uint32_t kMaxBlockRows = 256;  // rows of a step are run in blocks of at most this many
inline constexpr uint32_t kKeyTile = 64;        // keys per attention tile
inline constexpr uint32_t kKeySegment = 256;    // keys per attention segment
inline constexpr uint32_t kAllKeys = UINT32_MAX;

// Which forms of an activation the matrices that read it want: floats, int8 blocks, numbers rounded to bf16.
inline constexpr uint32_t kOperandFloat = 1, kOperandInt8 = 2, kOperandRounded = 4;
constexpr uint32_t operand_kind(DType weights, Compute compute = Compute::exact) {
  if (weights > DType::bf16) return kOperandInt8;
  return compute == Compute::bf16 ? kOperandRounded : kOperandFloat;
}

// Rows of activations in the device's own layout, ready for `linear`; a float operand of one row is that row. Memory comes from the step's workspace:
// `operand_bytes(kMaxBlockRows, width, kinds)` bytes, 64-byte aligned. int8 needs width % 32 == 0.
struct Operand {
  std::byte* data = nullptr;
  uint32_t rows = 0, width = 0, kinds = 0;
};

struct GatherArgs {  // x[r] = row tokens[r] of `table` (+ row positions[r] of `positions_table`, where given)
  const PackedMatrix* table;
  const PackedMatrix* positions_table;  // or null
  const uint32_t* tokens;
  const uint32_t* positions;
  uint32_t rows;
  float* x;  // [rows, table->inputs]
};

// Operand row r = norm(row r of x). layer: (x - mean) * inverse * weight + bias with inverse =
// 1 / sqrt(variance + epsilon); rms: x * inverse * weight with inverse = 1 / sqrt(mean square + epsilon).
// Each operation is rounded.
struct NormArgs {
  NormKind kind;
  float epsilon;
  NormWeights weights;
  const float* x;
  const uint32_t* row_index;  // row r reads x + row_index[r] * width; null: r
  Operand out;
};

inline constexpr uint32_t kLinearMatrices = 3;
struct LinearArgs {  // one operand times some matrices
  const PackedMatrix* matrices[kLinearMatrices];
  float* out[kLinearMatrices];     // out[i] + r * stride[i], `outputs` floats per row
  size_t stride[kLinearMatrices];  // in floats
  uint32_t count;                  // matrices used
  bool accumulate;                 // out = out + (a + bias) instead of out = a + bias
  Operand x;
};

struct ActivateArgs {  // operand row = gelu(up) or silu(gate) * up
  Activation kind;
  const float* gate;  // [rows, width] or null
  const float* up;    // [rows, width]
  Operand out;
};

struct PackArgs {  // operand row r = x[r] * scale
  const float* x;
  Operand out;
  size_t stride = 0;  // of x, in floats; 0: the width
  float scale = 1;
};

struct RotaryArgs {  // scale * cosines and sines of position * inverse frequency, in double, rounded once
  const double* inverse_frequencies;
  uint32_t pairs;
  double scale;
  const uint32_t* positions;
  uint32_t rows;
  float* cos_sin;  // [rows, 2 * pairs]: cosines, then sines
};

// One row of a block, as attention sees it.
struct AttentionRow {
  const CacheView* view;
  uint32_t position;  // the row writes this position and reads keys up to it
};

// Normalises (rms, as `norm` does, each head by itself) and rotates q and k in place, then writes k and v, rounded to the
// cache's element, into the row's page. Half-split pairs a = x[i], b = x[i + pairs] become a cos - b sin and b cos + a sin,
// each operation rounded.
struct StoreArgs {
  const AttentionRow* rows;
  uint32_t row_count;
  uint32_t layer, heads, kv_heads, head_width;
  const float* q_norm;  // [head_width] or null: no norm
  const float* k_norm;  // [head_width] or null
  float norm_epsilon;
  uint32_t pairs;        // rotated pairs per head, 0: no rotation
  const float* cos_sin;  // [row_count, 2 * pairs]
  float* q;              // [row_count, heads * head_width]
  float* k;              // [row_count, kv_heads * head_width]
  const float* v;        // [row_count, kv_heads * head_width]
};

// Consecutive rows of one sequence (consecutive positions), one key/value head with its query heads, some segments.
struct AttentionUnit {
  uint32_t first_row, rows;  // rows <= kMaxUnitRows
  uint32_t kv_head;
  uint32_t first_segment,
      last_segment;  // [first, last) in kKeySegment keys: all the last row sees, or a part
  int32_t partial;   // < 0: it has all segments, write the context; else its first slot of rows * group
};
inline constexpr uint32_t kMaxUnitRows = 16;

struct AttentionArgs {
  const AttentionRow* rows;
  uint32_t layer, heads, kv_heads, head_width;
  uint32_t window;     // keys that a row sees, its own included; kAllKeys: all
  float scale;         // 1 / sqrt(head_width)
  const float* q;      // [rows, heads * head_width], rotated
  float* context;      // [rows, heads * head_width]
  float* partials;     // slots of attention_slot_floats(head_width): (row of unit, head of group) in order
  std::byte* scratch;  // attention_scratch_bytes(heads / kv_heads, head_width), this worker's own
};

struct MergeArgs {             // folds `segments` partials of each row and head in order into the context
  const AttentionUnit* units;  // `segments` units of the same rows and head: segments 0, 1, ..., one each
  uint32_t segments;
  const AttentionArgs* attention;
};

struct KernelTable {
  const char* name;  // "scalar", "avx2", "avx512", "neon"

  // --- weights; rows are in file layout (core/dtype.h). unpack(pack(rows)) is the same bytes.
  size_t (*packed_bytes)(DType type, uint32_t outputs,
                         uint32_t inputs);  // includes padding; 64-byte aligned data
  // Quantised: `matrix.data` must be zeroed before its first pack_rows. What a matrix of floats has beyond its outputs never
  // reaches a result.
  void (*pack_rows)(const PackedMatrix& matrix, uint32_t first_row, uint32_t rows,
                    const std::byte* file_rows);
  void (*unpack_rows)(const PackedMatrix& matrix, uint32_t first_row, uint32_t rows, std::byte* file_rows);

  // --- activations
  size_t (*operand_bytes)(uint32_t rows, uint32_t width, uint32_t kinds);
  void (*gather)(const GatherArgs&, Share);
  void (*norm)(const NormArgs&, Share);
  void (*pack_operand)(const PackArgs&, Share);
  void (*linear)(const LinearArgs&, Share);
  void (*activate)(const ActivateArgs&, Share);

  // --- attention
  size_t (*kv_page_bytes)(const KvGeometry&);
  // Keys and values of one position, one layer, widened, in logical order [kv_heads, head_width]; saved sessions
  // and tests.
  void (*kv_read)(const CacheView&, uint32_t layer, uint32_t position, float* keys, float* values);
  void (*rotary)(const RotaryArgs&, Share);
  // false: a value of this share's k or v is not finite, or is too large for the element type
  bool (*store)(const StoreArgs&, Share);
  size_t (*attention_slot_floats)(uint32_t head_width);
  size_t (*attention_scratch_bytes)(uint32_t group, uint32_t head_width);
  void (*attend)(const AttentionArgs&, const AttentionUnit&);
  void (*merge)(const MergeArgs&);

  // --- logits
  bool (*all_finite)(const float* values, size_t count);
  // out[i] = exp((x[i] - shift) * scale); returns the sum over 16 virtual lanes (fixed order)
  float (*exp_row)(const float* x, size_t count, float shift, float scale, float* out);
};

}  // namespace riftco
