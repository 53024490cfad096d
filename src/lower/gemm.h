#pragma once

#include "ops/builder.h"

namespace lowtide {

// torch.matmul of two values of one dtype: 1-d operands are rows or columns, batch dims broadcast.
ValueId matrix_product(Builder& b, ValueId x, ValueId y);

}  // namespace lowtide
