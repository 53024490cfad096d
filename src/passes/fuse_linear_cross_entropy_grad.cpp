#include "passes/fuse_linear_cross_entropy_grad.h"

#include <algorithm>

#include "passes/pattern.h"

namespace lowtide {

namespace {

// Who reads the gradient of the logits, each at most once.
struct Readers {
  NodeId dweight, dx, dbias;
};

bool is_product(const Node& node, bool transposed) {
  const bool adds = node.inputs.size() > 2 && node.inputs[2];
  return node.op == Op::kGemm && node.attrs.b("transA") == transposed && !node.attrs.b("transB") &&
         node.attrs.f("alpha") == 1.0 && !adds;
}

bool sums_rows(const Node& node) {
  const Shape axes = node.op == Op::kReduceSum ? node.attrs.ints("axes") : Shape{};
  return axes.size() == 1 && axes[0].is(0) && !node.attrs.b("keepdims");
}

std::optional<Readers> readers_of(const Graph& graph, ValueId dlogits) {
  Readers found;
  if (graph.is_output(dlogits)) return std::nullopt;
  for (NodeId user : graph.value(dlogits).users) {
    const Node& node = graph.node(user);
    const bool is_first = node.inputs[0] == dlogits && std::count(node.inputs.begin(), node.inputs.end(), dlogits) == 1;
    NodeId* place = nullptr;
    if (is_product(node, true)) place = &found.dweight;
    if (is_product(node, false)) place = &found.dx;
    if (sums_rows(node)) place = &found.dbias;
    if (!is_first || place == nullptr || *place) return std::nullopt;
    *place = user;
  }
  return found.dx ? std::optional(found) : std::nullopt;
}

// What is added to the gradient of the loss, and the sum; or neither.
struct Sum {
  NodeId node;
  ValueId other;
};

Sum sum_of(const Graph& graph, ValueId dlogits) {
  const std::vector<NodeId>& users = graph.value(dlogits).users;
  if (users.size() != 1 || graph.is_output(dlogits)) return {};
  const Node& node = graph.node(users[0]);
  if (node.op != Op::kAdd || node.inputs[0] == node.inputs[1]) return {};
  const ValueId other = node.inputs[node.inputs[0] == dlogits ? 1 : 0];
  if (graph.type(other) != graph.type(dlogits)) return {};
  return {users[0], other};
}

NodeId first_of(const Graph& graph, const Readers& readers) {
  for (NodeId id : graph.order())
    if (id == readers.dweight || id == readers.dx || id == readers.dbias) return id;
  return {};
}

bool fuse_grad_at(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const TensorType& logits = graph.type(node.inputs[1]);
  const bool is_weighted = node.inputs.size() > 4 && node.inputs[4];
  if (logits.dtype == DType::kF64 || logits.shape.size() != 2 || is_weighted) return false;
  if (node.attrs.s("reduction") == "none") return false;
  const Sum sum = sum_of(graph, node.outputs[0]);
  const ValueId total = sum.node ? graph.node(sum.node).outputs[0] : node.outputs[0];
  const std::optional<Readers> readers = readers_of(graph, total);
  if (!readers) return false;

  const auto output_of = [&](NodeId reader) { return reader ? graph.node(reader).outputs[0] : ValueId{}; };
  const std::vector<ValueId> replaced{output_of(readers->dx), output_of(readers->dweight), output_of(readers->dbias)};
  std::vector<ValueId> operands{node.inputs.begin(), node.inputs.begin() + 4};
  operands.push_back(graph.node(readers->dx).inputs[1]);
  if (readers->dweight || sum.node)
    operands.push_back(readers->dweight ? graph.node(readers->dweight).inputs[1] : ValueId{});
  if (sum.node) operands.push_back(sum.other);
  Builder b = before(graph, first_of(graph, *readers));
  b.set_origin(graph.node(readers->dx).origin);
  std::vector<bool> wanted;
  for (ValueId value : replaced) wanted.push_back(value.valid());
  const NodeId fused = b.node(Op::kLinearCrossEntropyLossGrad, std::move(operands), node.attrs, wanted);
  for (size_t i = 0; i < replaced.size(); ++i) {
    if (!replaced[i]) continue;
    graph.replace_uses(replaced[i], graph.node(fused).outputs[i]);
  }
  return true;
}

}  // namespace

bool fuse_linear_cross_entropy_grad(Graph& graph) {
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order)
    if (graph.node(id).op == Op::kSoftmaxCrossEntropyLossGrad) changed = fuse_grad_at(graph, id) || changed;
  return changed;
}

}  // namespace lowtide
