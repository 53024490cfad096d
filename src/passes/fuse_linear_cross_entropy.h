#pragma once

#include "ir/graph.h"

namespace lowtide {

// Takes a linear layer and the cross entropy of its logits together, so that the logits of all rows are never there.
//   %z = Gemm(transB=true) %x, %w, %b
//   %loss, _ = SoftmaxCrossEntropyLoss %z, %labels   →   %loss, .. = LinearCrossEntropyLoss %x, %w, %labels, %b
// Reshapes, copies and slices of rows between the two move to %x. Of bf16 and f16, whose logits are rounded where these
// are not, the slices move and both ops stay (panel_linear_cross_entropy goes on from there). Left alone: logits that
// somebody else reads, f64, class weights, reduction "none", classes in another place than last. Requires: fuse_matmul
// (no transposed weight). Leaves: dead nodes (run dce).
bool fuse_linear_cross_entropy(Graph& graph);

}  // namespace lowtide
