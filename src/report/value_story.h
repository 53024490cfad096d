// What there is to tell of one value of a training step: who makes it, what it costs, who needs it in backward, and
// what stands against giving it up.
#pragma once

#include <string>
#include <string_view>

#include "memory/prices.h"
#include "memory/strategy.h"

namespace lowtide {

// JSON: {"value", "node", "module", "line", "bytes", "ms": to make it once more, "fate", "why": in words, "from":
// [names of the operands], "needed_by": [nodes of backward]}.
//   fate: input, output, backward (made there), freed (nobody reads it there), rebuilt (by default), blocked, stash
// Error(kInvalidArgument) with the nearest names for a name that the graph lacks.
std::string value_story(const MemoryContext& context, const Prices& prices, const DimValues& dims,
                        std::string_view name);

}  // namespace lowtide
