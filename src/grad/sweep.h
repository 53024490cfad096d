// Reverse mode over the nodes of a forward graph, from the last to the first, with the rules of src/ops.
//
// Gradients are summed in the order in which they appear, which is fixed: outputs of the module in their order, then
// the forward nodes from last to first, operands in their order, slices last.
#pragma once

#include "grad/pieces.h"
#include "ops/builder.h"

namespace lowtide {

class Sweep {
 public:
  // `builder` appends to the forward graph. `needs`: by forward value, whether its gradient is made.
  Sweep(Builder& builder, std::vector<bool> needs);

  // Writes the gradients that the node gives to its operands, if something flows into its outputs. All who read its
  // outputs were visited before.
  void visit(NodeId id);
  // Something more flows into a value.
  void add(ValueId value, ValueId grad, const Origin& origin);
  // All that flows into a value; none where nothing does.
  ValueId total(ValueId value);

  bool needs(ValueId value) const { return needs_[value.at()]; }
  // The origin of the latest of the gradients that flow into a value.
  const Origin& origin(ValueId value) const { return gradients_[value.at()].origin; }
  // By forward value: what total gave, or would give without writing anything.
  std::vector<ValueId> totals() const;

 private:
  struct Accumulated {
    ValueId sum;
    std::vector<GradientPiece> pieces;
    Origin origin;  // of the latest contribution
  };

  ValueId add_complex(ValueId value, ValueId a, ValueId b);
  ValueId sum_of(ValueId value);
  DType dtype_of_sum(ValueId value) const;

  Graph& graph_;
  Builder& builder_;
  std::vector<bool> needs_;             // by forward value
  std::vector<DType> sum_dtypes_;       // by forward value: in which its gradients are added
  std::vector<Accumulated> gradients_;  // by forward value
};

// "h_grad" for the gradient of %h, and the origin of a node that makes it.
std::string grad_name(const Graph& graph, ValueId value);
Origin gradient_origin(const Origin& of);

}  // namespace lowtide
