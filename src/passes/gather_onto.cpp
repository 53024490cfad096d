#include "passes/gather_onto.h"

#include "passes/rewrite.h"

namespace lowtide {

static bool rewrite_sum(Graph& graph, NodeId id) {
  if (graph.node(id).op != Op::kAdd) return false;
  for (const size_t k : {size_t{1}, size_t{0}}) {
    const ValueId part = operand(graph, id, k), onto = operand(graph, id, 1 - k);
    const NodeId gather = producer(graph, part, Op::kGatherGrad);
    if (!gather || graph.node(gather).inputs.size() != 2) continue;
    if (graph.value(part).users.size() != 1 || graph.is_output(part) || part == onto) continue;
    if (!(graph.type(part) == graph.type(onto))) continue;
    Builder builder = before(graph, id);
    const ValueId sum = builder.named(graph.value(graph.node(id).outputs[0]).name)
                            .op(Op::kGatherGrad, {operand(graph, gather, 0), operand(graph, gather, 1), onto},
                                graph.node(gather).attrs);
    graph.replace_uses(graph.node(id).outputs[0], sum);
    return true;
  }
  return false;
}

bool gather_onto(Graph& graph) {
  return rewrite_nodes(graph, 2, [&](NodeId id) { return rewrite_sum(graph, id); });
}

}  // namespace lowtide
