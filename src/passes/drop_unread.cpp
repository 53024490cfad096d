#include "passes/drop_unread.h"

#include "ir/reads.h"

namespace lowtide {

bool drop_unread(Graph& graph) {
  bool changed = false;
  for (NodeId id : graph.order()) {
    if (!has_trait(graph.node(id).op, Trait::kPaysPerOutput)) continue;
    for (size_t i = 0; i < graph.node(id).outputs.size(); ++i) {
      const ValueId output = graph.node(id).outputs[i];
      if (!output || is_read(graph, output)) continue;
      graph.drop_output(id, i);
      changed = true;
    }
  }
  return changed;
}

}  // namespace lowtide
