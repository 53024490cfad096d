#pragma once

#include "ir/graph.h"

namespace lowtide {

// Hands transpositions and factors to the matrix multiply.
//   MatMul %a, (Transpose(last two dims) %b)   →   FusedMatMul(transB=true) %a, %b
//   Mul (MatMul %a, %b), 0.125                 →   FusedMatMul(alpha=0.125) %a, %b
//   Gemm (Transpose %a), %b, %c                →   Gemm(transA=true) %a, %b, %c
// A factor goes into alpha only where the product has no other reader.
// Requires: nothing. Leaves: dead nodes (run dce).
bool fuse_matmul(Graph& graph);

}  // namespace lowtide
