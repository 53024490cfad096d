#include <iterator>

#include "base/check.h"
#include "ops/rules.h"

namespace lowtide {

void no_grad(GradContext& c) { LT_FAIL(name(c.node().op), " has no gradient rule"); }

static constexpr GradFunction kGrad[] = {
#define LT_OP(name, category, recompute, min_in, max_in, min_out, max_out, infer, grad) grad,
#include "opset/ops.def"
};

GradFunction grad_function(Op op) {
  LT_CHECK(static_cast<size_t>(op) < std::size(kGrad), "no such op: ", static_cast<int>(op));
  const GradFunction found = kGrad[static_cast<size_t>(op)];
  return found == no_grad ? nullptr : found;
}

}  // namespace lowtide
