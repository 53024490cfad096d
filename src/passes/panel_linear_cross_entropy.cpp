#include "passes/panel_linear_cross_entropy.h"

#include <algorithm>

#include "passes/pattern.h"

namespace lowtide {

namespace {

// x weight^T, or that plus a number for each class, in the dtype of the logits.
bool is_linear(const Graph& graph, const Node& product) {
  const Attrs& attrs = product.attrs;
  if (attrs.b("transA") || !attrs.b("transB") || attrs.f("alpha") != 1.0 || attrs.has("gives")) return false;
  if (product.inputs.size() < 3 || !product.inputs[2]) return true;
  return attrs.f("beta") == 1.0 && graph.type(product.inputs[2]).shape == Shape{graph.type(product.inputs[1]).shape[0]};
}

// The loss of these logits if it and `grad` are all that reads them.
NodeId loss_of(const Graph& graph, ValueId logits, NodeId grad) {
  const std::vector<NodeId>& users = graph.value(logits).users;
  if (users.size() != 2 || graph.is_output(logits)) return {};
  const NodeId loss = users[0] == grad ? users[1] : users[0];
  return loss != grad && graph.node(loss).op == Op::kSoftmaxCrossEntropyLoss ? loss : NodeId{};
}

bool has_constant_sizes(const TensorType& type) {
  return std::all_of(type.shape.begin(), type.shape.end(),
                     [](const Dim& dim) { return dim.is_constant() && !dim.is(0); });
}

// The linear layer of the logits and their loss, where both become one node; else neither.
struct Head {
  NodeId product, loss;
};

Head head_of(const Graph& graph, NodeId id) {
  const Node& grad = graph.node(id);
  const ValueId logits = grad.inputs[1];
  const bool has_other = grad.inputs.size() > 6 && grad.inputs[6];
  if (!is_half(graph.type(logits).dtype) || !grad.outputs[1] || has_other) return {};
  const Head head{producer(graph, logits, {Op::kGemm}), loss_of(graph, logits, id)};
  if (!head.product || !head.loss || !is_linear(graph, graph.node(head.product))) return {};
  if (!has_constant_sizes(graph.type(graph.node(head.product).inputs[1]))) return {};
  const Node& loss = graph.node(head.loss);
  const bool has_weights = loss.inputs.size() > 2 && loss.inputs[2];
  const bool is_its_gradient = loss.inputs[1] == grad.inputs[2] && loss.outputs[1] == grad.inputs[3];
  return is_its_gradient && !has_weights && !loss.attrs.has("gives") ? head : Head{};
}

// The loss with the outputs that keep the logits.
NodeId make_loss(Graph& graph, const Head& head, DType keeps) {
  Builder b = before(graph, head.loss);
  const Node &loss = graph.node(head.loss), &product = graph.node(head.product);
  b.set_origin(loss.origin);
  Attrs attrs = loss.attrs;
  attrs.set("computes", graph.type(product.outputs[0]).dtype);
  attrs.set("keeps", keeps);
  std::vector<ValueId> operands{product.inputs[0], product.inputs[1], loss.inputs[1]};
  if (product.inputs.size() > 2 && product.inputs[2]) operands.push_back(product.inputs[2]);
  return b.node(Op::kPanelLinearCrossEntropyLoss, std::move(operands), std::move(attrs));
}

// Where all that becomes of the weight's gradient is a copy in f32: that copy. What reads it then need not be 16 bits.
ValueId widened(const Graph& graph, ValueId dweight) {
  const std::vector<NodeId>& users = graph.value(dweight).users;
  if (users.size() != 1 || graph.is_output(dweight) || !is_half(graph.type(dweight).dtype)) return {};
  const Node& cast = graph.node(users[0]);
  return cast.op == Op::kCast && cast.attrs.t("to") == DType::kF32 ? cast.outputs[0] : ValueId{};
}

void replace(Graph& graph, NodeId node, NodeId by) {
  for (size_t i = 0; i < graph.node(node).outputs.size(); ++i)
    if (const ValueId output = graph.node(node).outputs[i]) graph.replace_uses(output, graph.node(by).outputs[i]);
}

bool rewrite_at(Graph& graph, NodeId id) {
  const Head head = head_of(graph, id);
  if (!head.product) return false;
  const ValueId dweight = graph.node(id).outputs[1], wide = widened(graph, dweight);
  const NodeId made = make_loss(graph, head, graph.type(wide ? wide : dweight).dtype);
  Builder b = before(graph, id);
  const Node& grad = graph.node(id);
  b.set_origin(grad.origin);
  std::vector<bool> wanted;
  for (ValueId value : grad.outputs) wanted.push_back(value.valid());
  std::vector<ValueId> operands{grad.inputs.begin(), grad.inputs.begin() + 6};
  operands[1] = graph.node(made).outputs[2];
  operands.push_back(graph.node(made).outputs[3]);
  const NodeId fused = b.node(Op::kPanelLinearCrossEntropyLossGrad, std::move(operands), grad.attrs, wanted);
  if (wide) replace_keeping_name(graph, wide, graph.node(fused).outputs[1]);
  replace(graph, id, fused);
  replace(graph, head.loss, made);
  return true;
}

}  // namespace

bool panel_linear_cross_entropy(Graph& graph) {
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order)
    if (graph.node(id).op == Op::kLinearCrossEntropyLossGrad) changed = rewrite_at(graph, id) || changed;
  return changed;
}

}  // namespace lowtide
