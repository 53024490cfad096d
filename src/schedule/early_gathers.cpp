#include "schedule/early_gathers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "schedule/live_bytes.h"
#include "schedule/order.h"

namespace lowtide {

namespace {

bool is_gather(const Node& node) {
  return is_collective(node.op) && has_trait(node.op, Trait::kRematerialisedByDefault);
}

// The positions behind `first` of the node at `last` and of all that leads to it.
std::set<int32_t> needed_from(const Graph& graph, const std::vector<int32_t>& positions, int32_t first, int32_t last) {
  std::set<int32_t> needed = {last};
  // Descending: what is found lies before what needs it.
  for (auto at = needed.rbegin(); at != needed.rend(); ++at)
    for (ValueId input : graph.node(graph.order()[static_cast<size_t>(*at)]).inputs) {
      const NodeId producer = input ? graph.value(input).producer : NodeId{};
      if (producer && positions[producer.at()] > first) needed.insert(positions[producer.at()]);
    }
  return needed;
}

}  // namespace

bool begin_gathers_early(Graph& graph) {
  const std::vector<NodeId> order = graph.order();
  if (std::none_of(order.begin(), order.end(), [&](NodeId id) { return is_gather(graph.node(id)); })) return false;
  const std::vector<DimValues> samples = sample_sizes(graph);
  if (samples.empty()) return false;
  std::vector<int32_t> positions(graph.node_capacity(), -1);
  for (size_t i = 0; i < order.size(); ++i) positions[order[i].at()] = static_cast<int32_t>(i);
  const Lifetimes lifetimes = find_lifetimes(graph, order);
  const std::vector<int64_t> bytes = arena_bytes(graph, lifetimes, samples.front());
  Timeline timeline = live_bytes(lifetimes, bytes, order.size());
  const int64_t peak = timeline.peak();

  std::vector<std::vector<NodeId>> behind(order.size());  // what moves there
  std::vector<bool> moves(order.size());
  int32_t previous = -1;  // gather on this side of YieldOp
  for (int32_t i = 0; i < static_cast<int32_t>(order.size()); ++i) {
    const Node& node = graph.node(order[static_cast<size_t>(i)]);
    if (is_yield(node.op)) previous = -1;
    if (!is_gather(node)) continue;
    const int32_t before = std::exchange(previous, i);
    if (before < 0) continue;
    const std::set<int32_t> needed = needed_from(graph, positions, before, i);
    int64_t made = 0;
    for (int32_t at : needed)
      for (ValueId output : graph.node(order[static_cast<size_t>(at)]).outputs)
        if (output) made += bytes[output.at()];
    const Stretch way{before + 1, i - 1};
    if (timeline.peak_within(way) + made > peak) continue;
    timeline.add(way, made);
    for (int32_t at : needed) {
      moves[static_cast<size_t>(at)] = true;
      behind[static_cast<size_t>(before)].push_back(order[static_cast<size_t>(at)]);
    }
  }
  std::vector<NodeId> moved;
  for (size_t i = 0; i < order.size(); ++i) {
    if (!moves[i]) moved.push_back(order[i]);
    moved.insert(moved.end(), behind[i].begin(), behind[i].end());
  }
  if (moved == order) return false;
  graph.set_order(std::move(moved));
  return true;
}

}  // namespace lowtide
