// Which values of a forward graph need a gradient.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace lowtide {

// The value whose gradient is this input's: what the input was changed to, if the graph changes one that requires a
// gradient. Such a write is one that autograd does not see.
ValueId holder_of_gradient(const Graph& forward, const GraphInput& input);

// By value id: floating, and on a path from an input that requires a gradient. Detach and Bernoulli end paths, integers
// and bools too. What such an input was changed to needs one itself.
std::vector<bool> needs_gradient(const Graph& forward);

// By value id: of the values that need a gradient, those on a path to one of `sources`.
std::vector<bool> reached_by_gradient(const Graph& forward, const std::vector<bool>& needs,
                                      const std::vector<ValueId>& sources);

}  // namespace lowtide
