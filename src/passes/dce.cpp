#include "passes/dce.h"

#include <algorithm>

namespace lowtide {

static bool has_effect(const Node& node) {
  return has_trait(node.op, Trait::kEffect) || (is_call(node.op) && node.outputs.empty());
}

bool dce(Graph& graph) {
  std::vector<bool> is_output(graph.value_count());
  for (const GraphOutput& output : graph.outputs()) is_output[output.value.at()] = true;
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (auto id = order.rbegin(); id != order.rend(); ++id) {
    const Node& node = graph.node(*id);
    const auto is_read = [&](ValueId output) {
      return output && (is_output[output.at()] || !graph.value(output).users.empty());
    };
    if (has_effect(node) || std::any_of(node.outputs.begin(), node.outputs.end(), is_read)) continue;
    graph.remove(*id);
    changed = true;
  }
  return changed;
}

}  // namespace lowtide
