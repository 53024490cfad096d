// Inspections of gradients: whoever looks at a value of forward looks at its gradient too.
//
// Where something inside of what a fusion replaced is inspected, the fusion leaves those nodes beside the fused op, and
// SameGradient says which value of theirs the fused one is. They lead to inspections and to nothing else, so that no
// gradient of the module's outputs flows into them: they have a sweep of their own.
#pragma once

#include <optional>

#include "grad/sweep.h"

namespace lowtide {

class InspectedGradients {
 public:
  // `sweep` is that of the graph; `sources`: the outputs of the module that get a gradient.
  InspectedGradients(Builder& builder, Sweep& sweep, const std::vector<bool>& needs,
                     const std::vector<ValueId>& sources);

  // Before the graph's sweep visits the node.
  void visit(NodeId id);
  // The gradient of a value is known; none: nothing to look at.
  void inspect(ValueId value, ValueId grad);

 private:
  void find_kept();

  Graph& graph_;
  Sweep& sweep_;
  std::vector<std::vector<NodeId>> inspections_;  // by forward value: its Inspect nodes; empty: no value has any
  std::vector<std::vector<bool>> reached_from_;   // by output of YieldOp, by forward value
  std::vector<bool> is_kept_;                     // by forward node: left there to be inspected
  std::optional<Sweep> kept_sweep_;               // over those
};

}  // namespace lowtide
