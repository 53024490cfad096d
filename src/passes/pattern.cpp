#include "passes/pattern.h"

#include <algorithm>
#include <cmath>

namespace lowtide {

bool is_near(double found, double expected) { return std::abs(found - expected) <= 2e-7 * std::abs(expected); }

void Pattern::add(NodeId node) {
  if (std::find(nodes_.begin(), nodes_.end(), node) == nodes_.end()) nodes_.push_back(node);
}

NodeId Pattern::take(ValueId value, std::initializer_list<Op> ops) {
  const NodeId id = producer(*graph_, value, ops, inspected_);
  if (id) add(id);
  return id;
}

ValueId Pattern::take_with_constant(ValueId value, Op op, double number) {
  const NodeId id = producer(*graph_, value, op);
  if (!id) return {};
  const std::vector<ValueId>& inputs = graph_->node(id).inputs;
  const bool commutes = has_trait(op, Trait::kCommutative);
  for (size_t i = 0; i < (commutes ? 2u : 1u); ++i) {
    const std::optional<double> constant = uniform_float(*graph_, inputs[1 - i]);
    if (!constant || !is_near(*constant, number)) continue;
    add(id);
    return inputs[i];
  }
  return {};
}

bool Pattern::is_closed(NodeId root) const {
  const auto is_inside = [&](NodeId node) {
    return std::find(nodes_.begin(), nodes_.end(), node) != nodes_.end() ||
           (inspected_ && is_inspection(graph_->node(node).op));
  };
  for (NodeId id : nodes_) {
    if (id == root) continue;
    for (ValueId output : graph_->node(id).outputs) {
      if (!output) continue;
      const std::vector<NodeId>& users = graph_->value(output).users;
      if (graph_->is_output(output) || !std::all_of(users.begin(), users.end(), is_inside)) return false;
    }
  }
  return true;
}

void Pattern::keep_inspected(Graph& graph, NodeId root, ValueId fused) const {
  const bool any = std::any_of(nodes_.begin(), nodes_.end(), [&](NodeId id) {
    const std::vector<ValueId>& outputs = graph.node(id).outputs;
    return id != root && std::any_of(outputs.begin(), outputs.end(),
                                     [&](ValueId output) { return output && is_inspected(graph, output); });
  });
  if (!any) return;
  const auto at = std::find(graph.order().begin(), graph.order().end(), root);
  const NodeId next = at + 1 == graph.order().end() ? NodeId{} : *(at + 1);
  const Origin origin = graph.node(root).origin;
  const TensorType type = graph.type(fused);
  ValueId old = graph.node(root).outputs[0];
  if (graph.type(old) != type) {
    const NodeId view = graph.add_node(Op::kReshape, {old}, {type}, {{"shape", type.shape}}, origin, next);
    old = graph.node(view).outputs[0];
  }
  graph.add_node(Op::kSameGradient, {old, fused}, {}, {}, origin, next);
}

Origin Pattern::origin(NodeId root) const {
  Origin origin = graph_->node(root).origin;
  if (origin.kind == OriginKind::kForward) origin.kind = OriginKind::kFused;
  std::vector<NodeId> ordered;
  for (NodeId id : graph_->order())
    if (std::find(nodes_.begin(), nodes_.end(), id) != nodes_.end()) ordered.push_back(id);
  origin.note = join(ordered, "+", [&](auto& out, NodeId id) { out << name(graph_->node(id).op); });
  return origin;
}

}  // namespace lowtide
