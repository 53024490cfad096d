// What a value's second making is: from what is alive in backward anyway (plain), or from a strictly smaller value that
// is kept in its place (compromised).
#pragma once

#include <set>

#include "memory/strategy.h"

namespace lowtide {

// The one rewriter of all strategies that let nodes run again. Clones run right before their first consumer, once for
// all who read them, and are named after their originals.
void run_again(Graph& graph, const MemoryContext& context, std::span<const Candidate* const> chosen);

// What a node reads when it runs again: not the running statistics of a batch norm, which forward has updated by then.
std::vector<ValueId> operands_again(const Node& node);

}  // namespace lowtide
