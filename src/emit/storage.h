// Where the bytes of a value are: a strided view of a root value's buffer. Views move no bytes; what cannot be a view
// is copied.
#pragma once

#include <optional>

#include "kernels/kernel.h"
#include "ops/view.h"

namespace lowtide {

struct Storage {
  int32_t buffer = -1;
  Dim offset = 0;  // elements
  Shape strides;   // elements, one per dim of the value
};

// Of images and lines: [N, C, H, W] and [N, C, L].
inline bool has_channels(const Shape& shape) { return shape.size() == 3 || shape.size() == 4; }
Shape channels_last_strides(const Shape& shape);
Shape heads_last_strides(const Shape& shape);  // [B, H, S, D] stored as [B, S, H, D]

// The storage of a view's result over its operand's storage; nothing where the result needs other bytes (a reshape
// across strides).
std::optional<Storage> view_storage(const Graph& graph, const Node& view, const Storage& input);

Layout layout_of(const Shape& shape, const Shape& strides);

// Whether the strides walk `numel` elements without gaps or repetition, in some order.
bool is_dense(const Shape& shape, const Shape& strides);

}  // namespace lowtide
