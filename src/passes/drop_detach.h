#pragma once

#include "ir/graph.h"

namespace lowtide {

// Removes Detach, SameGradient and redistributions that change nothing, which have done their work once the gradient is
// built.
//   %b = Detach %a        (uses of %b become %a)
// Requires: the gradient is built, or never will be. Leaves: dead nodes (run dce).
bool drop_detach(Graph& graph);

}  // namespace lowtide
