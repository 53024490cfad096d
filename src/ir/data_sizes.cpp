#include "ir/data_sizes.h"

namespace lowtide {

std::vector<DataSize> data_sizes(const Graph& graph) {
  std::vector<DataSize> found;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (makes_size(node.op))
      found.push_back({id, node.attrs.s("symbol"), node.attrs.dim("low"), node.attrs.dim("high")});
  }
  return found;
}

void add_data_sizes(const Graph& graph, DimValues& sizes) {
  for (const DataSize& size : data_sizes(graph)) sizes[size.symbol] = evaluate(size.high, sizes);
}

}  // namespace lowtide
