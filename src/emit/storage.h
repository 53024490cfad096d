// Where the bytes of a value are: a strided view of a root value's buffer. Views move no bytes; what cannot be a view
// is copied.
#pragma once

#include <optional>

#include "ir/graph.h"
#include "kernels/kernel.h"

namespace lowtide {

struct Storage {
  int32_t buffer = -1;
  Dim offset = 0;  // elements
  Shape strides;   // elements, one per dim of the value
};

Shape row_major_strides(const Shape& shape);
Shape channels_last_strides(const Shape& shape);
Shape heads_last_strides(const Shape& shape);  // [B, H, S, D] stored as [B, S, H, D]

// The storage of a view op's result over its operand's storage; nothing where the result needs other bytes (a reshape
// across strides).
std::optional<Storage> view_storage(const Graph& graph, NodeId view, const Shape& input_shape, const Storage& input);

// The strides of `shape` over the elements of `old_shape` at `old_strides`, if one can be proven for every size.
std::optional<Shape> reshape_strides(const Shape& old_shape, const Shape& old_strides, const Shape& shape);

// Whether two lists of strides walk `shape` alike: dims of size 1 have no stride to speak of.
bool same_strides(const Shape& shape, const Shape& a, const Shape& b);

Layout layout_of(const Shape& shape, const Shape& strides);

// Whether the strides walk `numel` elements without gaps or repetition, in some order.
bool is_dense(const Shape& shape, const Shape& strides);

}  // namespace lowtide
