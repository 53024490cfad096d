// Which incoming gradients the gradients of a training graph are made of.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace lowtide {

// Per graph input: the outputs of YieldOp (indices) that its gradient depends on; empty for an input without one. Where
// a call gives none of them, the input has no gradient at all, which is not the same as zeros: PyTorch leaves its grad
// as it is.
std::vector<std::vector<int>> gradient_sources(const Graph& training);

}  // namespace lowtide
