#include "passes/fuse_bias_softmax.h"

#include "passes/pattern.h"

namespace lowtide {

static bool fuse_bias_softmax_at(Graph& graph, NodeId softmax) {
  const ValueId s = operand(graph, softmax, 0);
  const TensorType type = graph.type(s);
  const auto rank = static_cast<int64_t>(type.shape.size());
  Pattern pattern(graph);
  pattern.add(softmax);
  const NodeId sum = pattern.take(s, Op::kAdd);
  if (!sum || !is_float(type.dtype) || !graph.node(softmax).attrs.dim("axis").is(rank - 1)) return false;
  if (!pattern.is_closed(softmax)) return false;
  // Where both have the shape, the bias is the second, as models write it.
  const bool first = graph.type(operand(graph, sum, 0)) == type;
  const ValueId x = operand(graph, sum, first ? 0 : 1), bias = operand(graph, sum, first ? 1 : 0);
  if (graph.type(x) != type) return false;
  const Attrs attrs = graph.node(softmax).attrs;
  Builder b = before(graph, softmax);
  b.set_origin(pattern.origin(softmax));
  graph.replace_uses(graph.node(softmax).outputs[0], b.op(Op::kBiasSoftmax, {x, bias}, attrs));
  return true;
}

bool fuse_bias_softmax(Graph& graph) {
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order)
    if (graph.node(id).op == Op::kSoftmax && is_read(graph, graph.node(id).outputs[0]))
      changed = fuse_bias_softmax_at(graph, id) || changed;
  return changed;
}

}  // namespace lowtide
