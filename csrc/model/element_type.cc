#include "model/element_type.h"

#include "base/error.h"
#include "core/quantise.h"

namespace riftco {

DType element_type(const ParameterInfo& p, std::optional<DType> type) {
  if (!type) return p.type;
  if (is_quantised(*type) && p.name == "embedding.position") return DType::f32;
  if (p.columns % dtype_info(*type).block != 0)
    fail(Status::unsupported, "the rows of %s have %u values, not whole blocks of %u as %s needs",
         p.name.c_str(), p.columns, dtype_info(*type).block, dtype_info(*type).name);
  return *type;
}

void convert_rows(const ParameterInfo& p, uint32_t first, uint32_t count, DType from, const std::byte* rows,
                  DType to, std::byte* out) {
  const size_t from_bytes = row_bytes(from, p.columns), to_bytes = row_bytes(to, p.columns);
  std::vector<float> values(p.columns);
  for (uint32_t r = 0; r < count; r++) {
    dequantise(from, rows + r * from_bytes, values);
    std::byte* const row = out + r * to_bytes;
    quantise(to, values, row);
    if (!row_is_finite(to, row, p.columns))
      fail(Status::unsupported, "row %u of %s has a value that is too large for %s", first + r,
           p.name.c_str(), dtype_info(to).name);
  }
}

}  // namespace riftco
