// The repeated layers of a model: where level 1 recomputes, between inputs that stay.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace lowtide {

struct Layer {
  std::string path;           // of its module ("transformer.h.0"); "layer 0" where found from structure
  std::vector<NodeId> nodes;  // forward nodes, in order
};

struct Layers {
  std::vector<Layer> layers;      // in the order in which forward enters them
  std::vector<int32_t> layer_of;  // by node; -1: in none

  int32_t find(NodeId node) const { return node.at() < layer_of.size() ? layer_of[node.at()] : -1; }
};

// From origins: members of the outermost ModuleLists and Sequentials whose members do the same work (module paths that
// differ in one number); in a model without, the calls of one module ("layer@2": its third call). Where the graph has
// no origins: from structure (residual + norm + attention).
Layers find_layers(const Graph& graph);

}  // namespace lowtide
