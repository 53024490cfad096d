#pragma once

#include "ir/graph.h"

namespace lowtide {

// Merges nodes that compute the same value.
//   %a = Mul %x, %y        %a = Mul %x, %y
//   %b = Mul %y, %x   →    (uses of %b become %a)
// Random nodes merge only with the same stream, so they draw the same numbers. Calls, copies (fresh bytes are their
// purpose) and nodes with a body stay. Two outputs of the module stay two tensors. A backward node merges with a
// forward node only where that keeps nothing alive that backward does not read already. Requires: nothing; must not run
// after recompute, which it would undo. Leaves: dead nodes (run dce).
bool cse(Graph& graph);

}  // namespace lowtide
