// Which calls PyTorch refuses for the dtypes of their operands, derived from dtypes.def.
#pragma once

#include "ir/graph.h"

namespace lowtide {

// Error(kUnsupported) where PyTorch would refuse this captured call: it runs it then, and says so itself.
void check_operand_dtypes(const Graph& captured, const Node& call);

}  // namespace lowtide
