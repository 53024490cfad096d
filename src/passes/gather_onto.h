#pragma once

#include "ir/graph.h"

namespace lowtide {

// Adds an embedding's gradient onto the gradient that the table has already: a table that is also the last layer's
// weight (tied embeddings) gets no second gradient of its size.
//   %d = GatherGrad %dy, %ids
//   %g = Add %w_grad, %d          →   %g = GatherGrad %dy, %ids, %w_grad
// Requires: a training graph whose sum has the gather's only reader. Leaves: dead nodes (run dce).
bool gather_onto(Graph& graph);

}  // namespace lowtide
