#include <algorithm>

#include "memory/budget/model.h"

namespace lowtide {

namespace {

// The rewriter follows chains by recursion.
constexpr size_t kDeepest = 2000;

struct Run {
  enum Kind : uint8_t { kFirst, kAgain, kPack, kUnpack };
  Kind kind = kFirst;
  int32_t id = 0;  // of a node its position, of packing a value
  bool is_of_node() const { return kind == kFirst || kind == kAgain; }
};

// Places in the order of runs; negative: never made.
struct Life {
  int32_t first = -1;
  int32_t last = -1;
};

class Simulator {
 public:
  Simulator(const StepModel& model, const Kept& kept) : model_(model), values_(model.values.size()) {
    const auto positions = static_cast<size_t>(model.positions);
    ways_.assign(values_, Keep::kWhole);
    for (size_t i = 0; i < values_; ++i)
      if (model.values[i].is_optional) ways_[i] = kept[i];
    order_.reserve(2 * positions);
    runs_again_.assign(positions, false);
    is_alive_.assign(positions, true);
    lives_.assign(3 * values_, {});
    needed_.assign(values_, false);
    is_unpacked_.assign(values_, false);
  }

  SimulatedStep run() {
    SimulatedStep result;
    if (!order_backward(result)) {
      result.is_deep = true;
      return result;
    }
    order_forward();
    find_dead();
    find_lives();
    result.bytes.assign(static_cast<size_t>(model_.positions), 0);
    count_bytes(result);
    for (const Run& run : order_) {
      if (run.kind == Run::kAgain) result.again.push_back(run.id);
      if (run.kind == Run::kFirst) result.slots.resize(result.again.size(), run.id);
      if (run.kind == Run::kUnpack)
        result.milliseconds += model_.values[static_cast<size_t>(run.id)].packing_milliseconds;
      if (run.is_of_node() && is_run(run)) result.milliseconds += model_.milliseconds[static_cast<size_t>(run.id)];
    }
    return result;
  }

 private:
  Keep way_of(int32_t value) const { return ways_[static_cast<size_t>(value)]; }
  bool is_missing(int32_t value) const { return way_of(value) == Keep::kAgain; }
  bool is_packed(int32_t value) const { return way_of(value) == Keep::kPacked; }

  // By value as forward makes it; as backward has it, made again or unpacked; packed.
  size_t instance(const Run& run, int32_t value) const {
    const bool is_backward = run.kind == Run::kAgain || run.id > model_.yield;
    return is_backward && way_of(value) != Keep::kWhole ? in_backward(value) : static_cast<size_t>(value);
  }
  size_t in_backward(int32_t value) const { return static_cast<size_t>(value) + values_; }
  size_t packed(int32_t value) const { return static_cast<size_t>(value) + 2 * values_; }

  std::span<const int32_t> reads(const Run& run) const {
    return (run.kind == Run::kAgain ? model_.reads_again : model_.reads)[static_cast<size_t>(run.id)];
  }

  // False: too deep a chain.
  bool order_backward(SimulatedStep& result) {
    for (int32_t position = model_.yield + 1; position < model_.positions; ++position) {
      const std::span<const int32_t> read = model_.reads[static_cast<size_t>(position)];
      for (int32_t value : read)
        if (is_missing(value) && !make_again(value, result)) return false;
      unpack(read, result);
      order_.push_back({Run::kFirst, position});
    }
    return true;
  }

  // What is packed is packed right behind its node.
  void order_forward() {
    std::vector<Run> forward;
    for (int32_t position = 0; position <= std::min(model_.yield, model_.positions - 1); ++position) {
      forward.push_back({Run::kFirst, position});
      for (int32_t value : model_.makes[static_cast<size_t>(position)])
        if (is_unpacked_[static_cast<size_t>(value)]) forward.push_back({Run::kPack, value});
    }
    order_.insert(order_.begin(), forward.begin(), forward.end());
  }

  // Right before the first who reads them.
  void unpack(std::span<const int32_t> values, SimulatedStep& result) {
    for (int32_t value : values) {
      if (!is_packed(value) || is_unpacked_[static_cast<size_t>(value)]) continue;
      is_unpacked_[static_cast<size_t>(value)] = true;
      result.packed.push_back(value);
      order_.push_back({Run::kUnpack, value});
    }
  }

  // Its node and all that this needs, each behind what it reads; false: too deep a chain.
  bool make_again(int32_t value, SimulatedStep& result) {
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
        unpack(reads, result);
        order_.push_back({Run::kAgain, frames.back().position});
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
    for (const Run& run : order_) {
      if (run.kind == Run::kPack) needed_[static_cast<size_t>(run.id)] = true;
      if (!run.is_of_node() || (run.kind == Run::kFirst && run.id <= model_.yield)) continue;
      for (int32_t value : reads(run))
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

  bool is_run(const Run& run) const { return run.kind != Run::kFirst || is_alive_[static_cast<size_t>(run.id)]; }

  void find_lives() {
    for (size_t i = 0; i < order_.size(); ++i) {
      const Run& run = order_[i];
      const int32_t now = static_cast<int32_t>(i);
      if (!is_run(run)) continue;
      const auto make = [&](size_t made) { lives_[made] = {now, now}; };
      if (run.kind == Run::kPack) {
        make(packed(run.id));
        lives_[static_cast<size_t>(run.id)].last = now;
      } else if (run.kind == Run::kUnpack) {
        make(in_backward(run.id));
        lives_[packed(run.id)].last = now;
      } else {
        // A second run does not make what is unpacked.
        for (int32_t value : model_.makes[static_cast<size_t>(run.id)])
          if (run.kind == Run::kFirst || !is_packed(value))
            make(run.kind == Run::kFirst ? static_cast<size_t>(value) : in_backward(value));
        for (int32_t value : reads(run)) lives_[instance(run, value)].last = now;
      }
    }
    place_of_.assign(static_cast<size_t>(model_.positions), 0);
    for (size_t i = 0; i < order_.size(); ++i)
      if (order_[i].kind == Run::kFirst) place_of_[static_cast<size_t>(order_[i].id)] = static_cast<int32_t>(i);
    for (size_t value = 0; value < values_; ++value)
      if (const int32_t until = model_.values[value].held_until; until >= 0 && lives_[value].first >= 0)
        lives_[value].last =
            std::max(lives_[value].last, place_of_[static_cast<size_t>(std::min(until, model_.positions - 1))]);
  }

  void count_bytes(SimulatedStep& result) {
    std::vector<int64_t> change(order_.size() + 1, 0);
    const auto add = [&](Life life, int64_t bytes) {
      if (life.first < 0 || life.first > life.last) return;
      change[static_cast<size_t>(life.first)] += bytes;
      change[static_cast<size_t>(life.last) + 1] -= bytes;
    };
    take_over();
    for (size_t i = 0; i < values_; ++i) {
      add(lives_[i], model_.values[i].bytes);
      add(lives_[i + values_], model_.values[i].bytes);
      add(lives_[i + 2 * values_], model_.values[i].packed_bytes);
    }
    for (const FixedBytes& fixed : model_.fixed)
      add({place_of_[static_cast<size_t>(fixed.first)], place_of_[static_cast<size_t>(fixed.last)]}, fixed.bytes);
    int64_t live = 0;
    int32_t slot = 0;
    for (size_t i = 0; i < order_.size(); ++i) {
      live += change[i];
      const Run& run = order_[i];
      int64_t now = live;
      if (run.is_of_node()) now += model_.scratch[static_cast<size_t>(run.id)];
      if (run.kind == Run::kAgain) now += model_.copies[static_cast<size_t>(run.id)];
      result.peak_bytes = std::max(result.peak_bytes, now);
      int64_t& most = result.bytes[static_cast<size_t>(slot)];
      most = std::max(most, now);
      if (run.kind == Run::kFirst) slot = std::min(run.id + 1, model_.positions - 1);
    }
  }

  // What a node's result takes over is not live beside it.
  void take_over() {
    for (size_t i = 0; i < order_.size(); ++i) {
      const Run& run = order_[i];
      const int32_t now = static_cast<int32_t>(i);
      if (!run.is_of_node() || !is_run(run)) continue;
      int32_t done = -1;
      for (const Takeover& takeover : model_.takeovers[static_cast<size_t>(run.id)]) {
        const size_t from = instance(run, takeover.from);
        if (takeover.to == done || lives_[from].last != now || lives_[from].first == now) continue;
        lives_[from].last = now - 1;
        done = takeover.to;
      }
    }
  }

  const StepModel& model_;
  const size_t values_;
  Kept ways_;  // kWhole where backward has no choice
  std::vector<Run> order_;
  std::vector<int32_t> place_of_;  // by position: in order_
  std::vector<char> runs_again_;   // by position
  std::vector<char> is_alive_;     // by position
  std::vector<char> needed_;       // by value: as first made
  std::vector<char> is_unpacked_;  // by value
  std::vector<Life> lives_;        // by instance
};

}  // namespace

SimulatedStep simulate(const StepModel& model, const Kept& kept) { return Simulator(model, kept).run(); }

}  // namespace lowtide
