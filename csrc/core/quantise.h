// Float rows into the element types that files can be written in.
#pragma once
#include <span>

#include "core/dtype.h"

namespace riftco {

// Rounds to the nearest value that the type has (f16, bf16: ties to even), whole blocks only. Quantised blocks
// are those of the format's public rule, and of the gguf package bit for bit:
//   q8_0  d = max |x| / 127, q = round(x / d), halves away from zero
//   q4_0  d = m / -8 with m the x of the largest |x| (the first of them), q = min(15, trunc(x / d + 8.5))
// each operation rounded to float, with 1 / d computed once (0 where d is 0) and d then stored as f16.
// Fails with unsupported for a type that there is no rule for.
void quantise(DType type, std::span<const float> row, std::byte* out);

}  // namespace riftco
