#pragma once

#include <vector>

#include "ir/graph.h"

namespace lowtide {

// A part of a graph as a forward graph of its own: what makes `outputs` from `inputs` and, where these do not cut the
// way, from the graph's inputs and incoming gradients. All of these are its inputs, under their names and without
// gradient; an output is none. Nodes that look at values are left out; contexts are never cut. `sizes` gives every
// symbol its size.
Graph excerpt(const Graph& graph, const std::vector<ValueId>& inputs, const std::vector<ValueId>& outputs,
              const DimValues& sizes);

}  // namespace lowtide
