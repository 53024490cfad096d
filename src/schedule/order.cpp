#include "schedule/order.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/checked.h"
#include "ir/data_sizes.h"
#include "schedule/live_bytes.h"

namespace lowtide {

namespace {

constexpr int64_t kLow = 2, kUsual = 64, kHigh = 1024;

// A node moves to stand right before or right behind another, with views that it reads or that read it.
struct Move {
  int32_t from = 0;  // its position
  int32_t to = 0;    // later: right behind the node there; earlier: right before it
};

std::set<std::string> names_of(const std::vector<DataSize>& sizes) {
  std::set<std::string> names;
  for (const DataSize& size : sizes) names.insert(size.symbol);
  return names;
}

// One order, with what is live in it at each sample.
class Schedule {
 public:
  Schedule(const Graph& graph, std::span<const DimValues> samples, std::span<const ValueId> takeovers)
      : graph_(graph), samples_(samples), takeovers_(takeovers) {
    set_order(graph.order());
  }

  const std::vector<NodeId>& order() const { return order_; }
  size_t sample_count() const { return samples_.size(); }
  int64_t peak(size_t sample) const { return timelines_[sample].peak(); }

  void set_order(std::vector<NodeId> order) {
    order_ = std::move(order);
    positions_.assign(graph_.node_capacity(), -1);
    for (size_t i = 0; i < order_.size(); ++i) positions_[order_[i].at()] = static_cast<int32_t>(i);
    yield_ = static_cast<int32_t>(order_.size());
    if (const NodeId yield = graph_.yield()) yield_ = position(yield);
    lifetimes_ = find_lifetimes(graph_, order_, takeovers_);
    const bool first = bytes_.empty();
    timelines_.clear();
    for (size_t k = 0; k < samples_.size(); ++k) {
      if (first) bytes_.push_back(arena_bytes(graph_, lifetimes_, samples_[k]));
      timelines_.push_back(live_bytes(lifetimes_, bytes_[k], order_.size()));
    }
  }

  // The move after which the fewest bytes are live, at this sample, where the peak is now: fewer than `peaks` has
  // there, and at no sample more than it has anywhere. Nothing: there is none.
  std::optional<Move> best_move(size_t sample, std::span<const int64_t> peaks) const {
    std::optional<Move> best;
    int64_t fewest = peaks[sample];
    for (const Move& move : moves_at(sample, timelines_[sample].peak_position())) {
      const int64_t highest = highest_on_the_way(sample, move);
      if (highest >= fewest) continue;
      bool rises = false;
      for (size_t k = 0; k < samples_.size() && !rises; ++k)
        rises = k != sample && highest_on_the_way(k, move) > peaks[k];
      if (rises) continue;
      best = move;
      fewest = highest;
    }
    return best;
  }

  std::vector<NodeId> order_after(const Move& move) const {
    const bool later = move.to > move.from;
    const std::set<NodeId> along = views_along(move);
    std::vector<NodeId> moved, result;
    const auto stays = [&](int32_t position) {
      const NodeId id = order_[static_cast<size_t>(position)];
      return position != move.from && !along.contains(id);
    };
    const int32_t low = std::min(move.from, move.to), high = std::max(move.from, move.to);
    for (int32_t i = low; i <= high; ++i)
      if (!stays(i)) moved.push_back(order_[static_cast<size_t>(i)]);
    result.assign(order_.begin(), order_.begin() + low);
    if (!later) result.insert(result.end(), moved.begin(), moved.end());
    for (int32_t i = low; i <= high; ++i)
      if (stays(i)) result.push_back(order_[static_cast<size_t>(i)]);
    if (later) result.insert(result.end(), moved.begin(), moved.end());
    result.insert(result.end(), order_.begin() + high + 1, order_.end());
    return result;
  }

 private:
  int32_t position(NodeId node) const { return positions_[node.at()]; }
  const Node& node_at(int32_t position) const { return graph_.node(order_[static_cast<size_t>(position)]); }

  // A node whose sizes a node of forward makes stays behind that one.
  bool names_data_size(const Node& node) const {
    if (data_symbols_.empty()) return false;
    std::set<std::string> symbols;
    for (const std::vector<ValueId>* values : {&node.inputs, &node.outputs})
      for (ValueId value : *values)
        if (value)
          for (const Dim& dim : graph_.type(value).shape) collect_symbols(dim, symbols);
    for (const auto& [name, value] : node.attrs) {
      if (const Dim* dim = std::get_if<Dim>(&value)) collect_symbols(*dim, symbols);
      if (const Shape* list = std::get_if<Shape>(&value))
        for (const Dim& dim : *list) collect_symbols(dim, symbols);
    }
    return std::any_of(symbols.begin(), symbols.end(),
                       [&](const std::string& symbol) { return data_symbols_.contains(symbol); });
  }
  bool is_fixed(const Node& node) const {
    if (names_data_size(node)) return true;
    return is_yield(node.op) || is_inspection(node.op) || is_call_gradient(node.op) || is_call(node.op) ||
           is_collective(node.op) || has_trait(node.op, Trait::kEffect);
  }
  bool is_view_at(int32_t position) const { return is_view(node_at(position).op); }

  // The views between that have to come along: those which the node reads, or which read it.
  std::set<NodeId> views_along(const Move& move) const {
    std::set<NodeId> views;
    std::vector<NodeId> pending = {order_[static_cast<size_t>(move.from)]};
    while (!pending.empty()) {
      const Node& node = graph_.node(pending.back());
      pending.pop_back();
      const auto take = [&](NodeId id) {
        if (!id || !is_view(graph_.node(id).op)) return;
        const int32_t at = position(id);
        const bool between = move.to > move.from ? at > move.from && at <= move.to : at < move.from && at >= move.to;
        if (between && views.insert(id).second) pending.push_back(id);
      };
      if (move.to > move.from) {
        for (ValueId output : node.outputs)
          if (output)
            for (NodeId user : graph_.value(output).users) take(user);
      } else {
        for (ValueId input : node.inputs)
          if (input) take(graph_.value(input).producer);
      }
    }
    return views;
  }

  // The first node that reads what the node makes, views looked through; the end of its half where none does.
  int32_t first_reader(int32_t at) const {
    int32_t first = half_end(at);
    std::vector<NodeId> pending = {order_[static_cast<size_t>(at)]};
    while (!pending.empty()) {
      const Node& node = graph_.node(pending.back());
      pending.pop_back();
      for (ValueId output : node.outputs) {
        if (!output) continue;
        for (NodeId user : graph_.value(output).users) {
          if (is_view(graph_.node(user).op)) {
            pending.push_back(user);
          } else {
            first = std::min(first, position(user));
          }
        }
      }
    }
    return first;
  }
  // The last node that makes what the node reads, views looked through; the one before its half where none does.
  int32_t last_maker(int32_t at) const {
    int32_t last = half_begin(at) - 1;
    std::vector<NodeId> pending = {order_[static_cast<size_t>(at)]};
    while (!pending.empty()) {
      const Node& node = graph_.node(pending.back());
      pending.pop_back();
      for (ValueId input : node.inputs) {
        if (!input) continue;
        const NodeId maker = graph_.value(input).producer;
        if (!maker) continue;
        if (is_view(graph_.node(maker).op)) {
          // Forward's views stay in forward.
          if (position(maker) >= half_begin(at)) pending.push_back(maker);
        } else {
          last = std::max(last, position(maker));
        }
      }
    }
    return last;
  }

  int32_t half_begin(int32_t at) const { return at > yield_ ? yield_ + 1 : 0; }
  int32_t half_end(int32_t at) const { return at < yield_ ? yield_ : static_cast<int32_t>(order_.size()); }

  // Gradients are handed over as early as they can be.
  bool makes_gradient(int32_t at) const {
    const std::vector<ValueId>& outputs = node_at(at).outputs;
    return std::any_of(outputs.begin(), outputs.end(),
                       [&](ValueId output) { return output && lifetimes_.of(output).holder == Holder::kGradient; });
  }

  // Moves that take bytes away from where the peak is: of the nodes that made what is live there, and of those that
  // read it last.
  std::vector<Move> moves_at(size_t sample, int32_t peak) const {
    std::set<int32_t> makers, readers;
    for (size_t i = 0; i < bytes_[sample].size(); ++i) {
      const Life& life = lifetimes_.lives[i];
      if (bytes_[sample][i] == 0 || life.first > peak || life.last < peak) continue;
      makers.insert(life.first);
      if (life.last < static_cast<int32_t>(order_.size())) readers.insert(life.last);
    }
    std::vector<Move> moves;
    for (int32_t at : makers) {
      if (is_fixed(node_at(at)) || makes_gradient(at) || half_begin(at) != half_begin(peak)) continue;
      const int32_t to = first_reader(at) - 1;
      if (to >= peak && to > at) moves.push_back({at, to});
    }
    for (int32_t at : readers) {
      if (is_fixed(node_at(at)) || is_view_at(at) || half_begin(at) != half_begin(peak)) continue;
      const int32_t to = last_maker(at) + 1;
      if (to <= peak && to < at) moves.push_back({at, to});
    }
    return moves;
  }

  // The most bytes that are live, once the node has moved, at it and at the nodes that it passes; elsewhere nothing
  // changes. Perhaps too many: a life that ends later now counts for all of the way.
  int64_t highest_on_the_way(size_t sample, const Move& move) const {
    const Timeline& timeline = timelines_[sample];
    const std::vector<int64_t>& bytes = bytes_[sample];
    const Node& node = node_at(move.from);
    const int32_t low = std::min(move.from, move.to), high = std::max(move.from, move.to);
    int64_t made = 0, unread = 0;
    for (ValueId output : node.outputs)
      if (output) (lifetimes_.lives[output.at()].last > move.from ? made : unread) += bytes[output.at()];
    std::set<ValueId> read;
    for (ValueId input : node.inputs)
      if (input) read.insert(lifetimes_.owner(input));
    if (move.to > move.from) {
      int64_t longer = 0;  // lives that end later now, with the node
      for (ValueId owner : read)
        if (lifetimes_.of(owner).last <= move.to) longer += bytes[owner.at()];
      int64_t dying = 0;
      for (ValueId input : owners_touched(move.to))
        if (lifetimes_.of(input).last == move.to && !lifetimes_.of(input).is_taken) dying += bytes[input.at()];
      return std::max(timeline.peak_within({low + 1, high}) - made + longer,
                      timeline.bytes_at(move.to) - dying + longer + unread);
    }
    int64_t shorter = 0;  // lives that end earlier now, with the node
    for (ValueId owner : read) {
      const Life& life = lifetimes_.of(owner);
      if (life.last == move.from && !is_read_within(owner, move.to, move.from - 1)) shorter += bytes[owner.at()];
    }
    int64_t born = 0;  // at the node that it will stand before, less what that one takes over
    for (ValueId output : node_at(move.to).outputs)
      if (output) born += bytes[output.at()];
    for (ValueId owner : owners_touched(move.to))
      if (lifetimes_.of(owner).last == move.to && lifetimes_.of(owner).is_taken) born -= bytes[owner.at()];
    return std::max(timeline.peak_within({low, high - 1}) + made - shorter,
                    timeline.bytes_at(move.to) - born + made + unread);
  }

  std::set<ValueId> owners_touched(int32_t at) const {
    std::set<ValueId> owners;
    for (const std::vector<ValueId>* values : {&node_at(at).inputs, &node_at(at).outputs})
      for (ValueId value : *values)
        if (value) owners.insert(lifetimes_.owner(value));
    return owners;
  }

  // Whether a node from `first` to `last` reads the bytes, under whichever name.
  bool is_read_within(ValueId owner, int32_t first, int32_t last) const {
    std::vector<ValueId> pending = {owner};
    while (!pending.empty()) {
      const ValueId value = pending.back();
      pending.pop_back();
      for (NodeId user : graph_.value(value).users) {
        const Node& node = graph_.node(user);
        if (is_view(node.op)) {
          if (node.outputs[0]) pending.push_back(node.outputs[0]);
        } else if (position(user) >= first && position(user) <= last) {
          return true;
        }
      }
    }
    return false;
  }

  const Graph& graph_;
  const std::set<std::string> data_symbols_ = names_of(data_sizes(graph_));
  std::span<const DimValues> samples_;
  std::span<const ValueId> takeovers_;
  std::vector<NodeId> order_;
  std::vector<int32_t> positions_;  // by node
  int32_t yield_ = 0;               // position of YieldOp; the number of positions where there is none
  Lifetimes lifetimes_;
  std::vector<std::vector<int64_t>> bytes_;  // by sample, by value
  std::vector<Timeline> timelines_;          // by sample
};

std::vector<int64_t> peaks_of(const Schedule& schedule) {
  std::vector<int64_t> peaks;
  for (size_t k = 0; k < schedule.sample_count(); ++k) peaks.push_back(schedule.peak(k));
  return peaks;
}

// Lowers the peak at one sample as far as moves go. Several positions may be as high: each is lowered before the peak
// is, so moves count only once all are.
void lower_peak(Schedule& schedule, size_t sample) {
  std::vector<NodeId> kept = schedule.order();
  std::vector<int64_t> peaks = peaks_of(schedule);
  // Every move leaves fewer positions as high as the peak is.
  for (size_t moves = 0; moves < kept.size(); ++moves) {
    const std::optional<Move> move = schedule.best_move(sample, peaks);
    if (!move) break;
    schedule.set_order(schedule.order_after(*move));
    const std::vector<int64_t> now = peaks_of(schedule);
    if (now[sample] >= peaks[sample]) continue;
    if (!std::equal(now.begin(), now.end(), peaks.begin(), std::less_equal<int64_t>())) break;
    kept = schedule.order();
    peaks = now;
    moves = 0;
  }
  if (schedule.order() != kept) schedule.set_order(kept);
}

// Whether every shape has a size of 0 or more there, and 64 bits hold the bytes of all values together.
bool fits(const Graph& graph, const DimValues& sizes) {
  int64_t total = 0;
  try {
    for (size_t i = 0; i < graph.value_count(); ++i) {
      const TensorType& type = graph.type(ValueId{static_cast<int32_t>(i)});
      for (const Dim& dim : type.shape)
        if (evaluate(dim, sizes) < 0) return false;
      const int64_t bytes = checked_multiply(evaluate(numel(type.shape), sizes), size_bytes(type.dtype));
      total = checked_add(total, padded_bytes(checked_add(bytes, 64)));
    }
  } catch (const Error&) {
    return false;
  }
  return true;
}

}  // namespace

std::vector<DimValues> sample_sizes(const Graph& graph) {
  std::set<std::string> symbols;
  for (const GraphInput& input : graph.inputs())
    for (const Dim& dim : graph.type(input.value).shape) collect_symbols(dim, symbols);
  const auto sizes = [&](int64_t first, int64_t others) {
    DimValues values;
    for (const std::string& symbol : symbols) {
      const DimRange range = range_of(Dim::symbol(symbol), graph.ranges());
      values[symbol] = std::clamp(values.empty() ? first : others, range.low, range.high);
    }
    return values;
  };
  std::vector<DimValues> samples;
  for (const auto& [first, others] :
       {std::pair(kUsual, kUsual), {kLow, kLow}, {kHigh, kHigh}, {kLow, kHigh}, {kHigh, kLow}}) {
    DimValues values = sizes(first, others);
    add_data_sizes(graph, values);
    if (std::find(samples.begin(), samples.end(), values) == samples.end() && fits(graph, values))
      samples.push_back(std::move(values));
  }
  return samples;
}

std::vector<NodeId> find_order(const Graph& graph, std::span<const DimValues> samples,
                               std::span<const ValueId> takeovers) {
  Schedule schedule(graph, samples, takeovers);
  for (size_t sample = 0; sample < samples.size(); ++sample) lower_peak(schedule, sample);
  return schedule.order();
}

bool schedule_order(Graph& graph) {
  std::vector<NodeId> order = find_order(graph, sample_sizes(graph));
  if (order == graph.order()) return false;
  graph.set_order(std::move(order));
  return true;
}

}  // namespace lowtide
