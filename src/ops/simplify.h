// Ops that have nothing to do, or less than they say, where their operands and attributes are what they are.
#pragma once

#include "ops/index_form.h"

namespace lowtide {

// The value that may stand for the node's only output, of its type and its bits; none where the op's rule (LT_SIMPLIFY
// in ops.def) knows none. New nodes stand before the node. A rule never looks past an inspected value (ir/reads.h).
ValueId simplify(Graph& graph, NodeId node, IndexForms& forms);

}  // namespace lowtide
