// The cheapest set of edges whose removal parts a source from a sink, in a network of integer capacities.
//
// Dinic's algorithm: shortest augmenting paths, level by level. Deterministic. Y. Dinitz, "Algorithm for solution of a
// problem of maximum flow in networks with power estimation", 1970.
#pragma once

#include <cstdint>
#include <vector>

namespace lowtide {

class FlowNetwork {
 public:
  // More than all capacities together that a caller may add: such an edge is never cut.
  static constexpr int64_t kUncut = int64_t{1} << 60;

  // Node 0 is the source, node 1 the sink.
  FlowNetwork() : edges_of_(2) {}
  int32_t add_node();
  // Returns the edge's number.
  int32_t add_edge(int32_t from, int32_t to, int64_t capacity);
  void set_capacity(int32_t edge, int64_t capacity) { capacities_[static_cast<size_t>(edge)] = capacity; }

  // The capacity of a cheapest cut. By node afterwards, whether it is on the source's side of the one that lies nearest
  // to the source.
  int64_t min_cut(std::vector<bool>& on_source_side);

 private:
  bool find_levels();
  int64_t push(int32_t node, int64_t most);

  struct HalfEdge {
    int32_t to = 0;
    int64_t left = 0;  // capacity that no flow uses
  };
  std::vector<std::vector<int32_t>> edges_of_;  // by node: half-edges, 2e forward and 2e + 1 back
  std::vector<HalfEdge> half_edges_;
  std::vector<int64_t> capacities_;  // by edge
  std::vector<int32_t> levels_;
  std::vector<size_t> next_;  // by node: the half-edge to be tried
};

}  // namespace lowtide
