#pragma once

#include "ir/graph.h"

namespace lowtide {

// Recognises attention written out, so that the scores are never kept.
//   %s = FusedMatMul(transB=true, alpha=scale) %q, %k
//   %p = Softmax (Add %s, %bias ..)                     →   %y = Attention(scale) %q, %k, %v, %bias
//   %y = MatMul (Dropout %p), %v
// Scores may be [B*H, S, T] or [B, H, S, T] and change between the two; several biases become their sum, which layers
// share. Requires: fuse_matmul (one form of scores). Leaves: dead nodes (run dce); run cse for the shared sums.
bool fuse_attention(Graph& graph);

}  // namespace lowtide
