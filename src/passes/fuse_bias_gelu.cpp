#include "passes/fuse_bias_gelu.h"

#include "passes/bias_sum.h"

namespace lowtide {

static bool fuse_bias_gelu_at(Graph& graph, NodeId root) {
  const Op op = graph.node(root).op;
  Pattern pattern(graph);
  pattern.add(root);
  const std::optional<BiasSum> sum = match_bias_sum(graph, pattern, operand(graph, root, 0));
  if (!sum || !pattern.is_closed(root)) return false;
  const ValueId x = without_bias(graph, *sum);
  Builder b = before(graph, root);
  b.set_origin(bias_origin(graph, {root}));
  const ValueId y = b.op(op == Op::kGelu ? Op::kBiasGelu : Op::kFastGelu, {x, sum->bias});
  graph.replace_uses(graph.node(root).outputs[0], y);
  return true;
}

static bool is_candidate(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.outputs.empty() || !is_read(graph, node.outputs[0])) return false;
  return node.op == Op::kGelu || (node.op == Op::kFastGelu && (node.inputs.size() < 2 || !node.inputs[1]));
}

bool fuse_bias_gelu(Graph& graph) {
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order)
    if (is_candidate(graph, id)) changed = fuse_bias_gelu_at(graph, id) || changed;
  return changed;
}

}  // namespace lowtide
