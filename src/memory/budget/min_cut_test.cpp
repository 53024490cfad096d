#include "memory/budget/min_cut.h"

#include <gtest/gtest.h>

#include "pack/random.h"

namespace lowtide {
namespace {

struct Edge {
  int32_t from = 0, to = 0;
  int64_t capacity = 0;
};

int64_t capacity_of(const std::vector<Edge>& edges, const std::vector<bool>& on_source_side) {
  int64_t sum = 0;
  for (const Edge& edge : edges)
    if (on_source_side[static_cast<size_t>(edge.from)] && !on_source_side[static_cast<size_t>(edge.to)])
      sum += edge.capacity;
  return sum;
}

struct Cut {
  int64_t capacity = INT64_MAX;
  std::vector<bool> on_source_side;  // of all cheapest cuts what is on that side in each
};

// Every way to part node 0 from node 1.
Cut try_all(int32_t nodes, const std::vector<Edge>& edges) {
  Cut best;
  for (uint32_t rest = 0; rest < (1u << (nodes - 2)); ++rest) {
    std::vector<bool> side = {true, false};
    for (int32_t node = 2; node < nodes; ++node) side.push_back((rest >> (node - 2)) & 1);
    const int64_t capacity = capacity_of(edges, side);
    if (capacity > best.capacity) continue;
    if (capacity < best.capacity) best = {capacity, side};
    for (size_t node = 0; node < side.size(); ++node)
      best.on_source_side[node] = best.on_source_side[node] && side[node];
  }
  return best;
}

TEST(MinCut, IsTheCheapestOfAllCutsAndLiesNearestToTheSource) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SplitMix rng(seed);
    const int32_t nodes = rng.between(2, 9);
    FlowNetwork network;
    for (int32_t node = 2; node < nodes; ++node) ASSERT_EQ(network.add_node(), node);
    std::vector<Edge> edges(static_cast<size_t>(rng.between(0, 24)));
    for (Edge& edge : edges) {
      edge = {rng.between(0, nodes - 1), rng.between(0, nodes - 1), rng.between(0, 6)};
      network.add_edge(edge.from, edge.to, edge.capacity);
    }
    for (int round = 0; round < 3; ++round) {  // the same network with other capacities
      std::vector<bool> side;
      const int64_t capacity = network.min_cut(side);
      const Cut expected = try_all(nodes, edges);
      EXPECT_EQ(capacity, expected.capacity);
      EXPECT_EQ(side, expected.on_source_side);
      for (size_t i = 0; i < edges.size(); ++i)
        network.set_capacity(static_cast<int32_t>(i), edges[i].capacity = rng.between(0, 6));
    }
  }
}

TEST(MinCut, NeverCutsAnUncutEdgeNorFollowsADeepPathByRecursion) {
  FlowNetwork network;
  constexpr int32_t kDeep = 200000;
  int32_t last = 0;
  for (int32_t i = 0; i < kDeep; ++i) {
    const int32_t node = network.add_node();
    network.add_edge(last, node, i == kDeep / 2 ? 7 : FlowNetwork::kUncut);
    last = node;
  }
  network.add_edge(last, 1, 9);
  std::vector<bool> side;
  EXPECT_EQ(network.min_cut(side), 7);
  EXPECT_TRUE(side[static_cast<size_t>(kDeep / 2 + 1)]);
  EXPECT_FALSE(side[static_cast<size_t>(kDeep / 2 + 2)]);
}

}  // namespace
}  // namespace lowtide
