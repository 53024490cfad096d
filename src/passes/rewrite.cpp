#include "passes/rewrite.h"

#include <algorithm>

namespace lowtide {

bool may_replace(const Graph& graph, ValueId from, ValueId to) {
  if (!is_module_output(graph, from)) return true;
  const ValueId base = base_of_views(graph, to);
  // Bytes that were already shared may stay so.
  if (base == base_of_views(graph, from)) return to != base || !is_module_output(graph, to);
  return graph.value(base).producer.valid() && base == to && !is_module_output(graph, to) &&
         std::none_of(graph.value(to).users.begin(), graph.value(to).users.end(),
                      [&](NodeId user) { return is_view(graph.node(user).op); });
}

void replace_keeping_name(Graph& graph, ValueId from, ValueId to) {
  if (graph.is_output(from)) {
    const std::string kept = graph.value(from).name;
    graph.rename(from, graph.unique_name(kept));
    graph.rename(to, kept);
  }
  graph.replace_uses(from, to);
}

}  // namespace lowtide
