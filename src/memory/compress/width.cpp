#include "memory/compress/width.h"

#include <bit>

namespace lowtide {

// 1, 2, 4, 8 ..: the bits of numbers up to `most`.
static int64_t bits_up_to(uint64_t most) {
  const int needed = std::bit_width(most);
  return needed <= 1 ? 1 : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(needed)));
}

std::optional<Width> width_of(const DimRange& range, DType dtype) {
  const uint64_t span = static_cast<uint64_t>(range.high) - static_cast<uint64_t>(range.low);
  Width width{bits_up_to(span), range.low};
  // The numbers themselves where an offset gains nothing.
  if (range.low >= 0 && bits_up_to(static_cast<uint64_t>(range.high)) == width.bits) width.low = 0;
  if (width.bits > 32 || width.bits >= 8 * size_bytes(dtype)) return std::nullopt;
  return width;
}

std::optional<Width> narrower(const Graph& graph, ValueRanges& ranges, ValueId value) {
  const TensorType& type = graph.type(value);
  if (type.dtype != DType::kBool && !is_integer(type.dtype)) return std::nullopt;
  const std::optional<Width> width = width_of(ranges.range(value), type.dtype);
  if (!width) return std::nullopt;
  // The last byte may be filled in part: n elements save bytes where they save more than 7 bits, and never cost any.
  const __int128 most = range_of(numel(type.shape), graph.ranges()).high;
  if (most * (8 * size_bytes(type.dtype) - width->bits) <= 7) return std::nullopt;
  return width;
}

}  // namespace lowtide
