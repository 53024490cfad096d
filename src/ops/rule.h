// What is known of an op beyond its line in ops.def: inference, gradient rule, cost.
#pragma once

#include <span>
#include <vector>

#include "ir/graph.h"

namespace lowtide {

// ---- inference: operand types and attributes → output types. A mistake of the user's is Error(kInvalidGraph) whose
// message starts with the op's name; the caller adds the node's origin.
struct InferArgs {
  Op op;
  std::span<const TensorType* const> inputs;  // nullptr: absent
  const Attrs& attrs;
  const DimRanges& ranges;

  const TensorType& in(size_t index) const { return *inputs[index]; }
  bool has(size_t index) const { return index < inputs.size() && inputs[index] != nullptr; }
};
using InferFunction = std::vector<TensorType> (*)(const InferArgs&);

// ---- gradients
class Builder;

// What a gradient rule sees: the forward node, the gradients of its outputs, and a builder that appends backward nodes.
// A rule names only the forward values that it needs: nothing else is kept alive.
class GradContext {
 public:
  GradContext(Builder& builder, const Graph& graph, NodeId node, std::vector<ValueId> output_grads,
              std::vector<bool> wanted, std::vector<ValueId> results)
      : builder_(builder),
        graph_(graph),
        node_(node),
        output_grads_(std::move(output_grads)),
        wanted_(std::move(wanted)),
        results_(std::move(results)) {}

  Builder& b() { return builder_; }
  const Graph& graph() const { return graph_; }
  NodeId node_id() const { return node_; }
  const Node& node() const { return graph_.node(node_); }
  const Attrs& attrs() const { return node().attrs; }
  ValueId in(size_t index) const { return index < node().inputs.size() ? node().inputs[index] : ValueId{}; }
  ValueId out(size_t index) const { return node().outputs[index]; }
  const TensorType& type(ValueId value) const { return graph_.type(value); }
  // The gradient of output `index`; invalid if nothing flows into it.
  ValueId dy(size_t index = 0) const { return output_grads_[index]; }
  // Whether input `index` needs a gradient (present, floating, and on a path to something that requires one).
  bool wants(size_t index) const { return index < wanted_.size() && wanted_[index]; }
  // Gives input `index` its gradient (of exactly its shape and dtype).
  void set(size_t index, ValueId grad) { results_[index] = grad; }
  // What several steps make of 16 bits is f32 between them, and rounded once.
  ValueId widened(ValueId value);
  void set_rounded(size_t index, ValueId grad);
  const std::vector<ValueId>& results() const { return results_; }

 private:
  Builder& builder_;
  const Graph& graph_;
  NodeId node_;
  std::vector<ValueId> output_grads_;
  std::vector<bool> wanted_;
  std::vector<ValueId> results_;
};
using GradFunction = void (*)(GradContext&);

// nullptr for ops without (ops.def: infer_none, no_grad).
InferFunction infer_function(Op op);
GradFunction grad_function(Op op);
inline bool is_differentiable(Op op) { return grad_function(op) != nullptr; }

// Infers the output types of an op; throws for ops without inference.
std::vector<TensorType> infer(Op op, std::span<const TensorType* const> inputs, const Attrs& attrs,
                              const DimRanges& ranges);
// Checks that every node's output types are those that inference gives.
void verify_types(const Graph& graph);

// ---- cost: what running the node moves and computes
template <class Number>
struct CostOf {
  Number flops = 0;
  Number bytes = 0;
  Number drawn = 0;  // random numbers
};
using Cost = CostOf<Dim>;
using CostAt = CostOf<double>;
Cost cost(const Graph& graph, NodeId node);
// The same at given sizes, which is much faster than evaluating it.
CostAt cost_at(const Graph& graph, NodeId node, const DimValues& dims);

// The bytes of `numel` elements that PackBits stores in `bits` bits each.
Dim packed_bytes(const Dim& numel, int64_t bits);

// The message with "(module, line)" of the origin behind it.
std::string with_origin(const std::string& message, const Origin& origin);

// numpy broadcasting of two shapes; Error(kInvalidGraph) if they do not fit.
Shape broadcast(const Shape& a, const Shape& b);

}  // namespace lowtide
