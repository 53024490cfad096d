#include "memory/budget/min_cut.h"

#include <algorithm>

namespace lowtide {

int32_t FlowNetwork::add_node() {
  edges_of_.emplace_back();
  return static_cast<int32_t>(edges_of_.size()) - 1;
}

int32_t FlowNetwork::add_edge(int32_t from, int32_t to, int64_t capacity) {
  const int32_t half = static_cast<int32_t>(half_edges_.size());
  half_edges_.push_back({to, 0});
  half_edges_.push_back({from, 0});
  edges_of_[static_cast<size_t>(from)].push_back(half);
  edges_of_[static_cast<size_t>(to)].push_back(half + 1);
  capacities_.push_back(capacity);
  return half / 2;
}

bool FlowNetwork::find_levels() {
  levels_.assign(edges_of_.size(), -1);
  levels_[0] = 0;
  std::vector<int32_t> queue = {0};
  for (size_t i = 0; i < queue.size(); ++i)
    for (int32_t half : edges_of_[static_cast<size_t>(queue[i])]) {
      const HalfEdge& edge = half_edges_[static_cast<size_t>(half)];
      int32_t& level = levels_[static_cast<size_t>(edge.to)];
      if (edge.left == 0 || level >= 0) continue;
      level = levels_[static_cast<size_t>(queue[i])] + 1;
      queue.push_back(edge.to);
    }
  return levels_[1] >= 0;
}

// Along one path, found by hand: paths are as long as the network is deep.
int64_t FlowNetwork::push(int32_t source, int64_t most) {
  std::vector<int32_t> path;
  int32_t node = source;
  while (node != 1) {
    size_t& next = next_[static_cast<size_t>(node)];
    const std::vector<int32_t>& edges = edges_of_[static_cast<size_t>(node)];
    while (next < edges.size()) {
      const HalfEdge& edge = half_edges_[static_cast<size_t>(edges[next])];
      if (edge.left > 0 && levels_[static_cast<size_t>(edge.to)] == levels_[static_cast<size_t>(node)] + 1) break;
      ++next;
    }
    if (next < edges.size()) {
      path.push_back(edges[next]);
      node = half_edges_[static_cast<size_t>(edges[next])].to;
      continue;
    }
    if (path.empty()) return 0;
    node = half_edges_[static_cast<size_t>(path.back() ^ 1)].to;
    path.pop_back();
    ++next_[static_cast<size_t>(node)];
  }
  int64_t flow = most;
  for (int32_t half : path) flow = std::min(flow, half_edges_[static_cast<size_t>(half)].left);
  for (int32_t half : path) {
    half_edges_[static_cast<size_t>(half)].left -= flow;
    half_edges_[static_cast<size_t>(half ^ 1)].left += flow;
  }
  return flow;
}

int64_t FlowNetwork::min_cut(std::vector<bool>& on_source_side) {
  for (size_t edge = 0; edge < capacities_.size(); ++edge) {
    half_edges_[2 * edge].left = capacities_[edge];
    half_edges_[2 * edge + 1].left = 0;
  }
  int64_t total = 0;
  while (find_levels()) {
    next_.assign(edges_of_.size(), 0);
    while (const int64_t flow = push(0, kUncut)) total += flow;
  }
  on_source_side.assign(edges_of_.size(), false);
  for (size_t node = 0; node < levels_.size(); ++node) on_source_side[node] = levels_[node] >= 0;
  return total;
}

}  // namespace lowtide
