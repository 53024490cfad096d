#pragma once

#include "ir/graph.h"

namespace lowtide {

// The sum with a bias or mask becomes part of the softmax that alone reads it.
//   %s = Add %x, %bias          →   %y = BiasSoftmax(axis) %x, %bias
//   %y = Softmax(axis) %s
// Over the last axis; the bias broadcasts to x.
// Requires: after fuse_attention, which wants the Softmax. Leaves: dead nodes (run dce).
bool fuse_bias_softmax(Graph& graph);

}  // namespace lowtide
