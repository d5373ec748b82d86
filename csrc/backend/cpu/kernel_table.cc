// Compiled once per instruction set (meson.build): RIFTCO_VEC_HEADER names the wrapper, RIFTCO_TABLE the exported table
// and RIFTCO_TABLE_NAME what it is called.
#include "backend/cpu/tables.h"
//
#include "backend/cpu/attention.h"
#include "backend/cpu/cache_page.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/norm.h"
#include "backend/cpu/operand.h"
#include "backend/cpu/pack.h"

namespace riftco {
namespace {

// out[i] = exp((x[i] - shift) * scale)
float exp_row(const float* x, size_t count, float shift, float scale, float* out) {
  const auto value = [shift, scale](F16 v) {
    return formulas::exp((v - F16::splat(shift)) * F16::splat(scale));
  };
  F16 total = F16::splat(0);
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const F16 v = value(F16::load(x + i));
    v.store(out + i);
    total = total + v;
  }
  if (i < count) {
    const uint32_t n = uint32_t(count - i);
    const F16 v = value(F16::load_first(x + i, n));
    v.store_first(out + i, n);
    total = select(first_lanes(n), total + v, total);
  }
  return sum(total);
}

}  // namespace

const KernelTable RIFTCO_TABLE = {
    .name = RIFTCO_TABLE_NAME,
    .packed_bytes = packed_bytes,
    .pack_rows = pack_rows,
    .unpack_rows = unpack_rows,
    .operand_bytes = operand_bytes,
    .gather = gather,
    .norm = norm,
    .pack_operand = pack_operand,
    .linear = linear,
    .activate = activate,
    .kv_page_bytes = kv_page_bytes,
    .kv_read = kv_read,
    .rotary = rotary,
    .store = store,
    .attention_slot_floats = attention_slot_floats,
    .attention_scratch_bytes = attention_scratch_bytes,
    .attend = attend,
    .merge = merge,
    .all_finite = all_finite,
    .exp_row = exp_row,
};

}  // namespace riftco
