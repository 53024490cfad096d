#include "passes/drop_detach.h"

#include "passes/rewrite.h"

namespace lowtide {

bool drop_detach(Graph& graph) {
  return rewrite_nodes(graph, 1, [&](NodeId id) {
    const Node& node = graph.node(id);
    if (node.op == Op::kSameGradient) {
      graph.remove(id);
      return true;
    }
    if (node.op != Op::kDetach || !is_read(graph, node.outputs[0])) return false;
    if (!may_replace(graph, node.outputs[0], node.inputs[0])) return false;
    graph.replace_uses(node.outputs[0], node.inputs[0]);
    return true;
  });
}

}  // namespace lowtide
