#pragma once

#include "ir/graph.h"

namespace lowtide {

// Replaces what can be known or done with less, without changing a bit of the results.
//   %a = Mul %x, 1.0            (uses of %a become %x)
//   %b = Reshape (Reshape %x)   %b = Reshape %x
//   %m = Less (Range), (Range)  where the index arithmetic proves it true everywhere: a constant
// Views, casts, identities of arithmetic, masks made of index arithmetic (ops/index_form.h), per-op rules
// (ops/simplify.h). A module output never becomes a view of an input or of another output. Requires: nothing. Leaves:
// dead nodes (run dce).
bool fold(Graph& graph);

}  // namespace lowtide
