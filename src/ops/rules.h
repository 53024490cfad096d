// Every inference and gradient function that ops.def names; the family files define them.
#pragma once

#include "ops/rule.h"

namespace lowtide {

#define LT_OP(name, category, recompute, min_in, max_in, min_out, max_out, infer, grad) \
  std::vector<TensorType> infer(const InferArgs&);                                      \
  void grad(GradContext&);
#include "opset/ops.def"

}  // namespace lowtide
