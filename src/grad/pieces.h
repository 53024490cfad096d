// Gradients of slices of one value: neighbours become one Concat, where a rule alone would pad each with zeros and add
// them up.
//   %q, %k, %v = three Slices of %x   →   %x_grad = Concat %q_grad, %k_grad, %v_grad
#pragma once

#include <vector>

#include "ops/builder.h"

namespace lowtide {

// `grad` belongs to [start, end) on `axis` of the sliced value.
struct GradientPiece {
  ValueId grad;
  int64_t axis = 0;
  Dim start, end;
};

// The gradient of a value of this shape from pieces of it, in the order in which they are added.
ValueId join_pieces(Builder& builder, const Shape& shape, std::vector<GradientPiece> pieces);

}  // namespace lowtide
