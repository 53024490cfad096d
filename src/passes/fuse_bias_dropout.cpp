#include "passes/fuse_bias_dropout.h"

#include "passes/bias_sum.h"

namespace lowtide {

// The residual if `add` adds one of the dropout's type to it.
static ValueId residual_of(const Graph& graph, NodeId add, ValueId dropped) {
  const Node& node = graph.node(add);
  if (node.op != Op::kAdd) return {};
  const ValueId residual = node.inputs[node.inputs[0] == dropped ? 1 : 0];
  return residual != dropped && graph.type(residual) == graph.type(dropped) ? residual : ValueId{};
}

static bool fuse_bias_dropout_at(Graph& graph, NodeId dropout) {
  if (graph.node(dropout).inputs.size() > 1) return false;  // the masks of some rows of a tensor
  Pattern pattern(graph);
  pattern.add(dropout);
  const std::optional<BiasSum> sum = match_bias_sum(graph, pattern, operand(graph, dropout, 0));
  if (!sum || !pattern.is_closed(dropout)) return false;
  const ValueId dropped = graph.node(dropout).outputs[0];
  NodeId root = dropout;
  std::vector<ValueId> operands = {sum->x, sum->bias};
  if (graph.value(dropped).users.size() == 1 && !graph.is_output(dropped)) {
    const NodeId user = graph.value(dropped).users[0];
    if (const ValueId residual = residual_of(graph, user, dropped)) {
      root = user;
      operands.push_back(residual);
    }
  }
  operands[0] = without_bias(graph, *sum);
  const Attrs attrs = graph.node(dropout).attrs;
  Builder b = before(graph, root);
  b.set_origin(root == dropout ? bias_origin(graph, {dropout}) : bias_origin(graph, {dropout, root}));
  graph.replace_uses(graph.node(root).outputs[0], b.op(Op::kBiasDropout, std::move(operands), attrs));
  return true;
}

bool fuse_bias_dropout(Graph& graph) {
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order)
    if (graph.node(id).op == Op::kDropout && is_read(graph, graph.node(id).outputs[0]))
      changed = fuse_bias_dropout_at(graph, id) || changed;
  return changed;
}

}  // namespace lowtide
