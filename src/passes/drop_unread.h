#pragma once

#include "ir/graph.h"

namespace lowtide {

// Drops the outputs that nobody reads of ops whose kernels compute each output for itself (Trait::kPaysPerOutput).
//   %loss: f32[], %dx: f32[n, 4], %dw: f32[9, 4] = LinearCrossEntropyLoss %x, %w, %labels
//   →  %loss: f32[], %dx: f32[n, 4], _ = LinearCrossEntropyLoss %x, %w, %labels
// Requires: the backward nodes that will read forward's outputs are there already.
bool drop_unread(Graph& graph);

}  // namespace lowtide
