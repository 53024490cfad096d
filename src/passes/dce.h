#pragma once

#include "ir/graph.h"

namespace lowtide {

// Removes nodes whose outputs nobody reads.
//   %a = Mul %x, %y        (gone)
//   return %x output   →   return %x output
// Keeps YieldOp, custom functions (the user's code may do more than compute) and calls without outputs (assertions).
// Requires: nothing.
bool dce(Graph& graph);

}  // namespace lowtide
