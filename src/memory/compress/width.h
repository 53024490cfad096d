// How many bits each element of an integer value needs.
#pragma once

#include <optional>

#include "ops/value_range.h"

namespace lowtide {

// What PackBits takes: elements are stored as their distance from `low`.
struct Width {
  int64_t bits = 0;  // 1, 2, 4, 8, 16 or 32
  int64_t low = 0;
};

// Of a value whose elements lie in `range`; nothing where they need more than 32 bits, or as many as the dtype has.
std::optional<Width> width_of(const DimRange& range, DType dtype);

// Of a value, by its proven range; nothing for floating point. The bytes saved are never negative; a value that is too
// small at every size to save any has none either. (Exported sizes may be 0, so nothing saves bytes at all of them.)
std::optional<Width> narrower(const Graph& graph, ValueRanges& ranges, ValueId value);

}  // namespace lowtide
