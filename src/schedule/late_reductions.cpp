#include "schedule/late_reductions.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "schedule/live_bytes.h"

namespace lowtide {

namespace {

constexpr size_t kAtOnce = 4;  // reductions that go on

struct AtSizes {
  std::vector<int64_t> bytes;  // by value
  Timeline timeline;
  int64_t peak = 0;  // of the graph as it came, without what stays free
};

class LateReductions {
 public:
  LateReductions(Graph& graph, const std::vector<DimValues>& sizes, int64_t spare_percent)
      : graph_(graph),
        sizes_(sizes),
        spare_percent_(spare_percent),
        order_(graph.order()),
        lifetimes_(find_lifetimes(graph, order_)) {}

  std::vector<LateWait> run() {
    const auto is_one = [&](NodeId id) { return is_reduction(graph_.node(id).op); };
    if (sizes_.empty() || std::none_of(order_.begin(), order_.end(), is_one)) return {};
    for (const DimValues& sizes : sizes_) {
      std::vector<int64_t> bytes = arena_bytes(graph_, lifetimes_, sizes);
      Timeline timeline = live_bytes(lifetimes_, bytes, order_.size());
      const int64_t peak = timeline.peak() - timeline.peak() * spare_percent_ / 100;
      at_.push_back({std::move(bytes), std::move(timeline), peak});
    }
    positions_.assign(graph_.node_capacity(), -1);
    for (size_t i = 0; i < order_.size(); ++i) positions_[order_[i].at()] = static_cast<int32_t>(i);
    moved_to_.assign(order_.size(), {});
    moves_.assign(order_.size(), false);
    may_move_.assign(order_.size(), false);
    std::vector<int32_t> reductions;
    for (size_t i = 0; i < order_.size(); ++i)
      if (is_one(order_[i])) reductions.push_back(static_cast<int32_t>(i));
    for (int32_t at : reductions) {
      std::vector<int32_t> readers;
      const bool may_move = find_readers(graph_.node(order_[static_cast<size_t>(at)]).outputs[0], readers);
      readers_.push_back(may_move ? std::optional(readers) : std::nullopt);
      for (int32_t reader : readers) may_move_[static_cast<size_t>(reader)] = true;
    }
    for (size_t i = 0; i < reductions.size(); ++i)
      if (readers_[i])
        consider(reductions[i], i + kAtOnce < reductions.size() ? reductions[i + kAtOnce] : end(), *readers_[i]);
    if (waits_.empty()) return {};
    std::vector<NodeId> order;
    for (size_t i = 0; i < order_.size(); ++i) {
      order.insert(order.end(), moved_to_[i].begin(), moved_to_[i].end());
      if (!moves_[i]) order.push_back(order_[i]);
    }
    order.insert(order.end(), moved_to_end_.begin(), moved_to_end_.end());
    graph_.set_order(std::move(order));
    return std::move(waits_);
  }

 private:
  int32_t end() const { return static_cast<int32_t>(order_.size()); }

  void consider(int32_t at, int32_t latest, const std::vector<int32_t>& readers) {
    const NodeId id = order_[static_cast<size_t>(at)];
    const Node& node = graph_.node(id);
    const ValueId whole = lifetimes_.owner(node.inputs[0]);
    if (lifetimes_.of(whole).holder != Holder::kArena || lifetimes_.of(whole).last != at) return;
    const ValueId part = node.outputs[0];
    const int64_t others = node.attrs.i("ranks") - 1;
    const auto fits = [&](int32_t position, bool with_whole) {
      return std::all_of(at_.begin(), at_.end(), [&](const AtSizes& at_sizes) {
        const int64_t more = others * at_sizes.bytes[part.at()] + (with_whole ? at_sizes.bytes[whole.at()] : 0);
        return at_sizes.timeline.bytes_at(position) + more <= at_sizes.peak;
      });
    };
    if (!fits(at, false)) return;
    int32_t until = at + 1;
    while (until < latest && fits(until, true)) ++until;
    while (until < latest && may_move_[static_cast<size_t>(until)]) --until;
    if (until <= at + 1) return;
    for (AtSizes& at_sizes : at_) {
      at_sizes.timeline.add({at, until - 1}, others * at_sizes.bytes[part.at()]);
      at_sizes.timeline.add({at + 1, until - 1}, at_sizes.bytes[whole.at()]);
    }
    std::vector<NodeId>& moved = until < end() ? moved_to_[static_cast<size_t>(until)] : moved_to_end_;
    NodeId before = until < end() ? order_[static_cast<size_t>(until)] : NodeId{};
    for (auto reader = readers.rbegin(); reader != readers.rend(); ++reader) {
      if (*reader >= until) continue;
      before = order_[static_cast<size_t>(*reader)];
      moves_[static_cast<size_t>(*reader)] = true;
    }
    for (int32_t reader : readers)
      if (reader < until) moved.push_back(order_[static_cast<size_t>(reader)]);
    waits_.push_back({id, before});
  }

  // Positions of all that depends on the value, ascending; whether nothing else is kept alive where they move, and no
  // other process waits for them.
  bool find_readers(ValueId value, std::vector<int32_t>& readers) const {
    std::deque<ValueId> left = {value};
    while (!left.empty()) {
      const ValueId next = left.front();
      left.pop_front();
      for (NodeId user : graph_.value(next).users) {
        const Node& node = graph_.node(user);
        if (node.inputs.size() != 1 || is_collective(node.op) || is_inspection(node.op)) return false;
        if (std::find(readers.begin(), readers.end(), positions_[user.at()]) != readers.end()) continue;
        readers.push_back(positions_[user.at()]);
        for (ValueId output : node.outputs)
          if (output) left.push_back(output);
      }
    }
    std::sort(readers.begin(), readers.end());
    return true;
  }

  Graph& graph_;
  const std::vector<DimValues>& sizes_;
  const int64_t spare_percent_;
  const std::vector<NodeId> order_;
  const Lifetimes lifetimes_;
  std::vector<AtSizes> at_;
  std::vector<int32_t> positions_;
  std::vector<std::vector<NodeId>> moved_to_;  // by position: what moves before it
  std::vector<NodeId> moved_to_end_;
  std::vector<bool> moves_, may_move_;
  std::vector<std::optional<std::vector<int32_t>>> readers_;  // by reduction; none: something else depends on it
  std::vector<LateWait> waits_;
};

}  // namespace

std::vector<LateWait> end_reductions_late(Graph& graph, const std::vector<DimValues>& sizes, int64_t spare_percent) {
  return LateReductions(graph, sizes, spare_percent).run();
}

}  // namespace lowtide
