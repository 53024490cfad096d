#pragma once

#include "ir/graph.h"

namespace lowtide {

// The sum with a bias becomes part of the activation that reads it.
//   %s = Add %x, %bias             %s = Gemm(beta=1) %a, %w, %bias        %s = Gemm %a, %w
//   %y = Gelu(none) %s             %v = Reshape %s                    →   %v = Reshape %s
//   → %y = BiasGelu %x, %bias      %y = FastGelu %v                       %y = FastGelu %v, %bias
// A BLAS writes the bias into the product's result before it multiplies, which costs a pass over memory.
// Requires: fuse_gelu, and dce after it. Leaves: dead nodes (run dce).
bool fuse_bias_gelu(Graph& graph);

}  // namespace lowtide
