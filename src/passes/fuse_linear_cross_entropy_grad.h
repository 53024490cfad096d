#pragma once

#include "ir/graph.h"

namespace lowtide {

// Where a linear layer's logits are kept (they are returned, or read once more), their gradient need not be: the two
// products that read it are made from blocks of its rows or columns.
//   %dz = SoftmaxCrossEntropyLossGrad %dloss, %z, %labels, %lse
//   %sum = Add %dz, %dz_sent                                    (where logits have another gradient too)
//   %dw = Gemm(transA=true) %sum, %x          →   %dx, %dw, %db = LinearCrossEntropyLossGrad
//   %dx = Gemm %sum, %w                               %dloss, %z, %labels, %lse, %w, %x, %dz_sent
//   %db = ReduceSum(axes=[0]) %sum
// Left alone: a gradient that somebody else reads, f64, class weights, reduction "none", an x without
// a gradient. Requires: a training graph after fuse_matmul and cse. Leaves: dead nodes (run dce).
bool fuse_linear_cross_entropy_grad(Graph& graph);

}  // namespace lowtide
