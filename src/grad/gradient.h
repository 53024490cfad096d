// forward graph → training graph: reverse mode over the graph, with the rules of src/ops.
#pragma once

#include "ir/graph.h"

namespace lowtide {

// Appends YieldOp and the backward nodes, and makes the outputs: updates, then one kGradient per input that requires
// one and is reached (inputs that are not reached have no gradient output: PyTorch's None). Requires: a lowered forward
// graph (only ops with a rule, Aten, PythonOp, or non-differentiable ones). A differentiable path through an op without
// rule is an internal error. `output_needs_grad[i]`: whether the caller may send a gradient for module output i; empty:
// every floating output on a path from an input that requires a gradient.
Graph build_gradient(const Graph& forward, std::vector<bool> output_needs_grad = {});

struct GradientGraph {
  Graph graph;
  std::vector<ValueId> gradients;  // by forward value: all that flows into it, or none
};
GradientGraph build_gradient_graph(const Graph& forward, std::vector<bool> output_needs_grad = {});

}  // namespace lowtide
