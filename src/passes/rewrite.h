// What rewrites share: replacing a value where that cannot be noticed, and going over all nodes.
#pragma once

#include "ir/reads.h"
#include "ir/views.h"
#include "ops/builder.h"
#include "ops/uniform.h"

namespace lowtide {

// Whether `to` may take the place of `from` everywhere: a module output must not become a view of an input or of
// another output, which the user could tell by writing into it.
bool may_replace(const Graph& graph, ValueId from, ValueId to);

// Everywhere, as Graph::replace_uses; an output keeps its name.
void replace_keeping_name(Graph& graph, ValueId from, ValueId to);

// Runs `rewrite` on every node until nothing changes (at most `rounds` times over the graph). A rewrite returns whether
// it changed the graph; it may remove nodes.
template <class Rewrite>
bool rewrite_nodes(Graph& graph, int rounds, Rewrite&& rewrite) {
  bool changed = false;
  for (int round = 0; round < rounds; ++round) {
    bool again = false;
    const std::vector<NodeId> order = graph.order();
    for (NodeId id : order)
      if (graph.is_alive(id)) again = rewrite(id) || again;
    changed = changed || again;
    if (!again) break;
  }
  return changed;
}

}  // namespace lowtide
