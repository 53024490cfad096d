#pragma once

#include "ir/graph.h"

namespace lowtide {

// The sum with a bias before a dropout, and the residual that is added after it, become part of the dropout.
//   %s = Gemm(beta=1) %a, %w, %bias        %s = Gemm %a, %w
//   %v = Reshape %s                    →   %v = Reshape %s
//   %d = Dropout(ratio, stream) %v         %y = BiasDropout(ratio, stream) %v, %bias, %residual
//   %y = Add %residual, %d
// An Add of a bias likewise. The mask is the one that Dropout would draw.
// Requires: nothing; best after fuse_attention, whose dropout is not for this. Leaves: dead nodes (run dce).
bool fuse_bias_dropout(Graph& graph);

}  // namespace lowtide
