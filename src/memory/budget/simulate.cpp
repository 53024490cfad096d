#include <algorithm>

#include "memory/budget/model.h"

namespace lowtide {

namespace {

// The rewriter follows chains by recursion.
constexpr size_t kDeepest = 2000;

class Simulator {
 public:
  Simulator(const StepModel& model, const Kept& kept) : model_(model), kept_(kept), values_(model.values.size()) {
    runs_again_.assign(static_cast<size_t>(model.positions), false);
    is_alive_.assign(static_cast<size_t>(model.positions), true);
    first_.assign(2 * values_, -1);
    last_.assign(2 * values_, -1);
    needed_.assign(values_, false);
  }

  SimulatedStep run() {
    SimulatedStep result;
    for (int32_t position = 0; position < model_.positions; ++position) {
      if (position > model_.yield)
        for (int32_t value : model_.reads[static_cast<size_t>(position)])
          if (is_missing(value) && !make_again(value)) {
            result.is_deep = true;
            return result;
          }
      order_.push_back(position);
    }
    find_dead();
    find_lives();
    result.bytes.assign(static_cast<size_t>(model_.positions), 0);
    count_bytes(result);
    for (int32_t at : order_) {
      const size_t position = static_cast<size_t>(node_of(at));
      if (is_second(at)) result.again.push_back(node_of(at));
      if (is_second(at) || is_alive_[position]) result.milliseconds += model_.milliseconds[position];
    }
    return result;
  }

 private:
  // In order_: a position, or -1 - position of a node that runs again.
  static bool is_second(int32_t at) { return at < 0; }
  static int32_t node_of(int32_t at) { return at < 0 ? -1 - at : at; }

  bool is_missing(int32_t value) const {
    return model_.values[static_cast<size_t>(value)].is_optional && !kept_[static_cast<size_t>(value)];
  }
  // By value first made, then by value made again.
  size_t instance(int32_t at, int32_t value) const {
    const bool in_backward = is_second(at) || at > model_.yield;
    return static_cast<size_t>(value) + (in_backward && is_missing(value) ? values_ : 0);
  }
  std::span<const int32_t> reads(int32_t at) const {
    return (is_second(at) ? model_.reads_again : model_.reads)[static_cast<size_t>(node_of(at))];
  }

  // Its node and all that this needs, each behind what it reads; false: too deep a chain.
  bool make_again(int32_t value) {
    struct Frame {
      int32_t position;
      size_t next = 0;
    };
    std::vector<Frame> frames;
    const auto enter = [&](int32_t missing) {
      const int32_t position = model_.values[static_cast<size_t>(missing)].producer;
      if (runs_again_[static_cast<size_t>(position)]) return;
      runs_again_[static_cast<size_t>(position)] = true;
      frames.push_back({position});
    };
    enter(value);
    while (!frames.empty()) {
      if (frames.size() > kDeepest) return false;
      const std::span<const int32_t> reads = model_.reads_again[static_cast<size_t>(frames.back().position)];
      if (frames.back().next == reads.size()) {
        order_.push_back(-1 - frames.back().position);
        frames.pop_back();
        continue;
      }
      const int32_t read = reads[frames.back().next++];
      if (is_missing(read)) enter(read);
    }
    return true;
  }

  // Nodes of forward that only backward had needed, and what only they had needed.
  void find_dead() {
    for (int32_t at : order_) {
      if (!is_second(at) && at <= model_.yield) continue;
      for (int32_t value : reads(at))
        if (!is_missing(value)) needed_[static_cast<size_t>(value)] = true;
    }
    for (int32_t position = std::min(model_.yield, model_.positions - 1); position >= 0; --position) {
      const size_t at = static_cast<size_t>(position);
      const std::span<const int32_t> made = model_.makes[at];
      is_alive_[at] =
          model_.is_kept_alive[at] || made.empty() ||
          std::any_of(made.begin(), made.end(), [&](int32_t value) { return needed_[static_cast<size_t>(value)]; });
      if (!is_alive_[at]) continue;
      for (int32_t value : model_.reads[at]) needed_[static_cast<size_t>(value)] = true;
    }
  }

  bool is_run(int32_t at) const { return is_second(at) || is_alive_[static_cast<size_t>(at)]; }

  void find_lives() {
    for (size_t i = 0; i < order_.size(); ++i) {
      const int32_t at = order_[i], now = static_cast<int32_t>(i);
      if (!is_run(at)) continue;
      for (int32_t value : model_.makes[static_cast<size_t>(node_of(at))]) {
        const size_t made = static_cast<size_t>(value) + (is_second(at) ? values_ : 0);
        first_[made] = last_[made] = now;
      }
      for (int32_t value : reads(at)) last_[instance(at, value)] = now;
    }
    place_of_.assign(static_cast<size_t>(model_.positions), 0);
    for (size_t i = 0; i < order_.size(); ++i)
      if (!is_second(order_[i])) place_of_[static_cast<size_t>(order_[i])] = static_cast<int32_t>(i);
    for (size_t value = 0; value < values_; ++value)
      if (const int32_t until = model_.values[value].held_until; until >= 0 && first_[value] >= 0)
        last_[value] = std::max(last_[value], place_of_[static_cast<size_t>(std::min(until, model_.positions - 1))]);
  }

  void count_bytes(SimulatedStep& result) {
    std::vector<int64_t> change(order_.size() + 1, 0);
    const auto add = [&](int32_t first, int32_t last, int64_t bytes) {
      if (first > last) return;
      change[static_cast<size_t>(first)] += bytes;
      change[static_cast<size_t>(last) + 1] -= bytes;
    };
    take_over();
    for (size_t i = 0; i < 2 * values_; ++i)
      if (first_[i] >= 0) add(first_[i], last_[i], model_.values[i % values_].bytes);
    for (const FixedBytes& fixed : model_.fixed)
      add(place_of_[static_cast<size_t>(fixed.first)], place_of_[static_cast<size_t>(fixed.last)], fixed.bytes);
    int64_t live = 0;
    int32_t slot = 0;
    for (size_t i = 0; i < order_.size(); ++i) {
      live += change[i];
      const size_t node = static_cast<size_t>(node_of(order_[i]));
      int64_t now = live + model_.scratch[node];
      if (is_second(order_[i])) now += model_.copies[node];
      result.peak_bytes = std::max(result.peak_bytes, now);
      int64_t& most = result.bytes[static_cast<size_t>(slot)];
      most = std::max(most, now);
      if (!is_second(order_[i])) slot = std::min(order_[i] + 1, model_.positions - 1);
    }
  }

  // What a node's result takes over is not live beside it.
  void take_over() {
    for (size_t i = 0; i < order_.size(); ++i) {
      const int32_t at = order_[i], now = static_cast<int32_t>(i);
      if (!is_run(at)) continue;
      int32_t done = -1;
      for (const Takeover& takeover : model_.takeovers[static_cast<size_t>(node_of(at))]) {
        const size_t from = instance(at, takeover.from);
        if (takeover.to == done || last_[from] != now || first_[from] == now) continue;
        last_[from] = now - 1;
        done = takeover.to;
      }
    }
  }

  const StepModel& model_;
  const Kept& kept_;
  const size_t values_;
  std::vector<int32_t> order_;
  std::vector<int32_t> place_of_;      // by position: in order_
  std::vector<bool> runs_again_;       // by position
  std::vector<bool> is_alive_;         // by position
  std::vector<bool> needed_;           // by value: as first made
  std::vector<int32_t> first_, last_;  // by instance: places in order_
};

}  // namespace

SimulatedStep simulate(const StepModel& model, const Kept& kept) { return Simulator(model, kept).run(); }

}  // namespace lowtide
