// Matrices in another element type: the same values whether a file is written or read with it.
#pragma once
#include <optional>

#include "model/parameter_store.h"

namespace riftco {

// What a matrix becomes where `type` is asked for (absent: what it is; positions are float32 in a quantised model). Fails with
// unsupported where its rows are not whole blocks.
DType element_type(const ParameterInfo& matrix, std::optional<DType> type);

// Rows of a parameter from one type to another, rounded as quantise does; `first` is for messages. Fails with unsupported for a
// value that is too large for the type.
void convert_rows(const ParameterInfo& p, uint32_t first, uint32_t count, DType from, const std::byte* rows,
                  DType to, std::byte* out);

}  // namespace riftco
