#pragma once

#include "ir/graph.h"

namespace lowtide {

// Checks the numbered invariants of docs/ir.md; throws Error(kInvalidGraph) naming the invariant and the node.
void verify(const Graph& graph);

}  // namespace lowtide
