#include "ir/data_sizes.h"

#include <algorithm>

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

std::string fresh_size(const Graph& graph, const std::string& base) {
  const std::vector<DataSize> sizes = data_sizes(graph);
  for (int i = 0;; ++i) {
    std::string name = i == 0 ? base : base + "_" + std::to_string(i);
    if (std::none_of(sizes.begin(), sizes.end(), [&](const DataSize& each) { return each.symbol == name; }))
      return name;
  }
}

void add_data_sizes(const Graph& graph, DimValues& sizes) {
  for (const DataSize& size : data_sizes(graph)) sizes[size.symbol] = evaluate(size.high, sizes);
}

}  // namespace lowtide
