// Sizes that nodes find while they run: symbols of a graph beside those of its inputs. A node that makes one stands
// before all that name it.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace lowtide {

struct DataSize {
  NodeId node;
  std::string symbol;
  Dim low;   // a number
  Dim high;  // of sizes that are known before it
};

// In the graph's order.
std::vector<DataSize> data_sizes(const Graph& graph);

// A name like `base` that is none of theirs.
std::string fresh_size(const Graph& graph, const std::string& base);

// Adds the most that each may be: what is planned for.
void add_data_sizes(const Graph& graph, DimValues& sizes);

}  // namespace lowtide
