// How views show the bytes of what they view: an offset and a stride for each dim, in elements.
#pragma once

#include <optional>

#include "ir/graph.h"

namespace lowtide {

// Element [i_0, i_1, ..] lies at offset + Σ strides[k]*i_k.
struct Strided {
  Dim offset = 0;
  Shape strides;
  friend bool operator==(const Strided&, const Strided&) = default;
};

Shape row_major_strides(const Shape& shape);

// Whether two lists of strides are the same for a tensor of `shape`: a dim of size 1 has no stride to speak of.
bool same_strides(const Shape& shape, const Shape& a, const Shape& b);

// The strides of `shape` over the elements of `old_shape` at `old_strides`, if one can be proven for every size.
std::optional<Shape> reshape_strides(const Shape& old_shape, const Shape& old_strides, const Shape& shape);

// How the result of a view op shows what `operand` shows; nothing where no strides can (a reshape across gaps).
std::optional<Strided> view_of(const Graph& graph, const Node& view, const Strided& operand);

}  // namespace lowtide
