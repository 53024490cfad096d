#include "memory/recompute/borders.h"

namespace lowtide {

std::set<ValueId> layer_borders(const MemoryContext& context) {
  std::set<ValueId> borders;
  if (!context.keep_layer_borders) return borders;
  const Graph& graph = context.graph;
  const StashAnalysis& stash = context.stash;
  for (NodeId id : graph.order()) {
    if (!stash.in_forward(id)) break;
    if (is_view(graph.node(id).op)) continue;
    for (ValueId input : graph.node(id).inputs) {
      if (!input) continue;
      ValueId base = stash.base(input);
      while (stash.is_rematerialised(base)) base = stash.base(graph.node(graph.value(base).producer).inputs[0]);
      const NodeId producer = graph.value(stash.base(input)).producer;
      if (producer && context.layers.find(producer) != context.layers.find(id)) borders.insert(base);
    }
  }
  return borders;
}

}  // namespace lowtide
