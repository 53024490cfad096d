// Orders of random graphs against sums that are made position by position.
#include "schedule/order.h"

#include <gtest/gtest.h>

#include <random>

#include "ir/verify.h"
#include "ops/builder.h"
#include "ops/rule.h"
#include "schedule/live_bytes.h"

namespace lowtide {
namespace {

// Chains of products between rows of few and many columns, and sums of equals.
Graph random_graph(std::mt19937& random, int nodes) {
  Graph graph;
  graph.ranges()["b"] = {1, 512};
  const int64_t widths[] = {4, 16, 64};
  const Dim b = Dim::symbol("b");
  std::vector<ValueId> weights, values;
  for (int64_t from : widths)
    for (int64_t to : widths)
      weights.push_back(graph.add_input("w", {DType::kF32, {Dim(from), Dim(to)}}, InputKind::kParam));
  values.push_back(graph.add_input("x", {DType::kF32, {b, Dim(16)}}, InputKind::kInput));
  Builder builder(graph);
  for (int i = 0; i < nodes; ++i) {
    const ValueId value = values[values.size() - 1 - random() % std::min<size_t>(values.size(), 6)];
    const Dim width = graph.type(value).shape[1];
    if (random() % 3 == 0) {
      const ValueId other = values[random() % values.size()];
      const bool fits = graph.type(other).shape[1] == width;
      values.push_back(fits ? builder.op(Op::kAdd, {value, other}) : builder.op(Op::kNeg, {value}));
    } else {
      const ValueId weight = weights[random() % weights.size()];
      const bool fits = graph.type(weight).shape[0] == width;
      values.push_back(fits ? builder.op(Op::kMatMul, {value, weight}) : builder.op(Op::kNeg, {value}));
    }
  }
  graph.add_output(values.back());
  return graph;
}

int64_t highest_sum(const Graph& graph, std::span<const NodeId> order, const DimValues& sizes) {
  const Lifetimes lifetimes = find_lifetimes(graph, order);
  const std::vector<int64_t> bytes = arena_bytes(graph, lifetimes, sizes);
  int64_t highest = 0;
  for (int32_t position = 0; position < static_cast<int32_t>(order.size()); ++position) {
    int64_t live = 0;
    for (size_t i = 0; i < bytes.size(); ++i)
      if (lifetimes.lives[i].first <= position && position <= lifetimes.lives[i].last) live += bytes[i];
    highest = std::max(highest, live);
  }
  return highest;
}

TEST(ScheduleOrder, NeverRaisesAPeakOfRandomGraphs) {
  constexpr unsigned kSeed = 5;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  int lowered = 0;
  for (int run = 0; run < 60; ++run) {
    Graph graph = random_graph(random, 10 + run);
    const std::vector<DimValues> samples = sample_sizes(graph);
    ASSERT_EQ(samples.size(), 3u);  // one symbol: low, usual, high
    const std::vector<NodeId> before = graph.order();
    const std::vector<NodeId> order = find_order(graph, samples);
    ASSERT_EQ(find_order(graph, samples), order) << "run " << run;
    if (order == before) continue;
    ++lowered;
    graph.set_order(order);
    verify(graph);
    bool is_lower = false;
    for (const DimValues& sizes : samples) {
      const int64_t was = highest_sum(graph, before, sizes), now = highest_sum(graph, order, sizes);
      ASSERT_LE(now, was) << "run " << run;
      is_lower = is_lower || now < was;
    }
    EXPECT_TRUE(is_lower) << "run " << run << ": another order, and no peak is lower";
  }
  EXPECT_GT(lowered, 10);
}

TEST(SampleSizes, HaveBytesThat64BitsHold) {
  Graph graph;
  graph.ranges()["a"] = {1, 4096};
  const Dim a = Dim::symbol("a");
  graph.add_input("x", {DType::kF64, {a, a, a, a, a, a, a}}, InputKind::kInput);
  const std::vector<DimValues> samples = sample_sizes(graph);
  EXPECT_EQ(samples.size(), 2);
  for (const DimValues& sizes : samples) EXPECT_LE(sizes.at("a"), 64);
}

}  // namespace
}  // namespace lowtide
