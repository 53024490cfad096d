#pragma once

#include "ir/graph.h"

namespace lowtide {

// Takes a linear layer and the cross entropy of its logits together, so that the logits of all rows are never there.
//   %z = Gemm(transB=true) %x, %w, %b
//   %loss, _ = SoftmaxCrossEntropyLoss %z, %labels   →   %loss, .. = LinearCrossEntropyLoss %x, %w, %labels, %b
// Reshapes, copies and slices of rows between the two move to %x. Left alone: logits that somebody else reads, other
// floats than f32 (their logits are rounded where these are not), class weights, reduction "none", classes in another
// place than last. Requires: fuse_matmul (no transposed weight). Leaves: dead nodes (run dce).
bool fuse_linear_cross_entropy(Graph& graph);

}  // namespace lowtide
