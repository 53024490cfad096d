#include "passes/drop_detach.h"

#include "passes/rewrite.h"

namespace lowtide {

bool drop_detach(Graph& graph) {
  return rewrite_nodes(graph, 1, [&](NodeId id) {
    const Node& node = graph.node(id);
    if (is_gradient_tie(node.op)) {
      graph.remove(id);
      return true;
    }
    const bool is_detach = is_view(node.op) && has_trait(node.op, Trait::kBlocksGradient);
    const bool is_same = is_redistribution(node.op) && node.attrs.s("kind") == "same";
    if (!(is_detach || is_same) || !is_read(graph, node.outputs[0])) return false;
    if (!may_replace(graph, node.outputs[0], node.inputs[0])) return false;
    graph.replace_uses(node.outputs[0], node.inputs[0]);
    return true;
  });
}

}  // namespace lowtide
