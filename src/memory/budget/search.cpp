#include "memory/budget/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "pack/random.h"

namespace lowtide {

namespace {

// Targets between default and floor, a geometric ladder.
constexpr int kTargets = 32;
// Prices tried for each target, and for the floor.
constexpr int kPricesPerTarget = 6;
constexpr int kPricesForFloor = 40;
// Choices tried by themselves for each target: fewer where a simulated step takes longer.
constexpr int kMostTries = 48, kFewestTries = 8;
constexpr int kTriedPositions = 150000;
// Moves of annealing for each target: fewer where a simulated step takes longer.
constexpr int kMostMoves = 600;
constexpr int kMovedPositions = 300000;
// Steps tried between two neighbouring plans: fewer where a simulated step takes longer.
constexpr int kMostMixes = 8;
constexpr int kMixedPositions = 30000;

struct Tried {
  Kept kept;
  SimulatedStep step;
};

// All that is remembered of a step that was tried: those of a long step would fill the memory.
struct Outcome {
  int64_t peak_bytes = 0;
  double milliseconds = 0;
  bool is_deep = false;
};

struct HashOfKept {
  size_t operator()(const Kept& kept) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(kept.data()), kept.size()});
  }
};

class Search {
 public:
  Search(const StepModel& model, const std::vector<int32_t>& layers)
      : model_(model), layers_(layers), cut_(model), share_(static_cast<size_t>(model.positions), 0) {}

  std::vector<FoundPlan> run() {
    const Tried start = evaluate(kept_by_default(model_));
    default_peak_ = start.step.peak_bytes;
    default_milliseconds_ = start.step.milliseconds;
    add({start.kept, default_peak_, default_milliseconds_, {}});
    if (default_peak_ <= 0) return front();
    sweep();
    find_floor();
    find_choices();
    lower_floor();
    descend();
    for (int pass = 0; pass < 2; ++pass) {
      mix_neighbours();
      polish();
    }
    anneal();
    polish();
    return front();
  }

 private:
  Tried evaluate(Kept kept) const {
    SimulatedStep step = simulate(model_, kept);
    return {std::move(kept), std::move(step)};
  }

  // How the value may get to backward.
  std::span<const Keep> ways_of(size_t value) const {
    static constexpr Keep kWays[] = {Keep::kAgain, Keep::kWhole, Keep::kPacked};
    const ModelValue& each = model_.values[value];
    const size_t first = each.may_run_again ? 0 : 1, end = each.packed_bytes > 0 ? 3 : 2;
    return std::span(kWays).subspan(first, end - first);
  }

  const Outcome& outcome(const Kept& kept) {
    const auto at = known_.find(kept);
    if (at != known_.end()) return at->second;
    const SimulatedStep step = simulate(model_, kept);
    return known_.emplace(kept, Outcome{step.peak_bytes, step.milliseconds, step.is_deep}).first->second;
  }

  // Where no other has a peak as low in as little time.
  bool add(FoundPlan plan) {
    for (const FoundPlan& other : plans_)
      if (other.peak_bytes <= plan.peak_bytes && other.milliseconds <= plan.milliseconds) return false;
    // What is in force without a budget stays the first, whatever else is found.
    std::erase_if(plans_, [&](const FoundPlan& other) {
      return other.peak_bytes >= plan.peak_bytes && other.milliseconds >= plan.milliseconds;
    });
    plans_.push_back(std::move(plan));
    return true;
  }
  bool add(const Tried& tried, const BytePrices& prices) {
    if (tried.step.is_deep) return false;
    return add({tried.kept, tried.step.peak_bytes, tried.step.milliseconds, prices});
  }

  BytePrices prices() const {
    BytePrices result(share_.size());
    for (size_t i = 0; i < share_.size(); ++i) result[i] = level_ * share_[i];
    return result;
  }

  Tried try_prices() {
    const BytePrices now = prices();
    Tried tried = evaluate(cut_.choose(now));
    add(tried, now);
    return tried;
  }

  // All prices where most bytes are live.
  void price_where_most(const SimulatedStep& step) {
    const size_t most =
        static_cast<size_t>(std::max_element(step.bytes.begin(), step.bytes.end()) - step.bytes.begin());
    std::fill(share_.begin(), share_.end(), 0);
    share_[most] = 1;
  }

  // Prices move to where the step needs more than the target.
  void move_prices(const SimulatedStep& step, double target, double speed) {
    double sum = 0;
    for (size_t i = 0; i < share_.size(); ++i) {
      const double over = (static_cast<double>(step.bytes[i]) - target) / target;
      if (over > 0) share_[i] += speed * over;
      sum += share_[i];
    }
    if (sum > 0)
      for (double& share : share_) share /= sum;
  }

  // One price for all, from next to nothing to more than anything costs.
  void sweep() {
    price_where_most(evaluate(kept_by_default(model_)).step);
    const double usual = default_milliseconds_ / static_cast<double>(default_peak_);
    for (int i = -16; i <= 12; ++i) {
      level_ = usual * std::pow(2.0, 0.75 * i);
      const Tried tried = try_prices();
      if (tried.step.is_deep) break;
    }
  }

  void find_floor() {
    const double usual = default_milliseconds_ / static_cast<double>(default_peak_);
    level_ = 64 * usual;
    int64_t least = default_peak_;
    for (const FoundPlan& plan : plans_) least = std::min(least, plan.peak_bytes);
    for (int i = 0; i < kPricesForFloor; ++i) {
      const Tried tried = try_prices();
      if (tried.step.is_deep) {
        level_ /= 4;
        continue;
      }
      least = std::min(least, tried.step.peak_bytes);
      move_prices(tried.step, 0.9 * static_cast<double>(least), 1.0 / (1 + i / 8));
    }
    floor_ = least;
  }

  int moves() const { return std::min(kMostMoves, kMovedPositions / std::max(model_.positions, 1)); }

  // From the smallest plan, moves that need no more, and less and less often some that do.
  void lower_floor() {
    const FoundPlan start = *std::min_element(plans_.begin(), plans_.end(), [](const FoundPlan& a, const FoundPlan& b) {
      return a.peak_bytes < b.peak_bytes;
    });
    const double heat = 0.03 * static_cast<double>(floor_);
    anneal_from(start, 0, 4 * moves(), heat, 2, [&](int64_t peak_bytes, double) {
      floor_ = std::min(floor_, peak_bytes);
      return static_cast<double>(peak_bytes);
    });
  }

  // The fastest found that needs no more.
  const FoundPlan* fastest_within(int64_t target) const {
    const FoundPlan* best = nullptr;
    for (const FoundPlan& plan : plans_)
      if (plan.peak_bytes <= target && (best == nullptr || plan.milliseconds < best->milliseconds)) best = &plan;
    return best;
  }

  std::vector<int64_t> targets() const {
    std::vector<int64_t> result;
    const double ratio = static_cast<double>(floor_) / static_cast<double>(default_peak_);
    for (int i = 1; i <= kTargets; ++i)
      result.push_back(
          std::llround(static_cast<double>(default_peak_) * std::pow(ratio, static_cast<double>(i) / kTargets)));
    return result;
  }

  void descend() {
    price_where_most(evaluate(kept_by_default(model_)).step);
    level_ = default_milliseconds_ / static_cast<double>(default_peak_) / 64;
    for (int64_t target : targets()) {
      if (const FoundPlan* known = fastest_within(target); known != nullptr && !known->prices.empty())
        take_prices(*known);
      for (int i = 0; i < kPricesPerTarget; ++i) {
        const Tried tried = try_prices();
        if (tried.step.is_deep) break;
        const double over = static_cast<double>(tried.step.peak_bytes) / static_cast<double>(target);
        move_prices(tried.step, static_cast<double>(target), 0.5);
        level_ *= over > 1 ? 1.6 : 1 / 1.3;
      }
    }
  }

  void take_prices(const FoundPlan& plan) {
    level_ = 0;
    for (double price : plan.prices) level_ += price;
    if (level_ <= 0) return;
    for (size_t i = 0; i < share_.size(); ++i) share_[i] = plan.prices[i] / level_;
  }

  std::vector<FoundPlan> front() {
    std::sort(plans_.begin(), plans_.end(),
              [](const FoundPlan& a, const FoundPlan& b) { return a.peak_bytes > b.peak_bytes; });
    return plans_;
  }

  // Between two plans one behind the other, layer after layer as in the smaller; of no layer, node after node.
  void mix_neighbours() {
    const std::vector<FoundPlan> plans = front();
    const auto most = static_cast<size_t>(std::clamp(kMixedPositions / std::max(model_.positions, 1), 1, kMostMixes));
    for (size_t i = 0; i + 1 < plans.size(); ++i) {
      std::map<std::pair<int32_t, int32_t>, std::vector<size_t>> differences;  // by layer, or by node
      for (size_t value = 0; value < model_.values.size(); ++value) {
        if (plans[i].kept[value] == plans[i + 1].kept[value]) continue;
        const int32_t layer = layers_[value];
        differences[{layer, layer < 0 ? model_.values[value].producer : -1}].push_back(value);
      }
      if (differences.size() < 2) continue;
      const size_t steps = std::min(differences.size() - 1, most);
      for (const bool from_front : {true, false}) {
        Kept kept = plans[i].kept;
        size_t done = 0;
        std::vector<const std::vector<size_t>*> groups;
        for (const auto& [layer, values] : differences) groups.push_back(&values);
        if (!from_front) std::reverse(groups.begin(), groups.end());
        for (size_t step = 1; step <= steps; ++step) {
          for (; done < groups.size() * step / (steps + 1); ++done)
            for (size_t value : *groups[done]) kept[value] = plans[i + 1].kept[value];
          Kept mixed = kept;
          keep_what_must_stay(mixed);  // a chain that is cut anywhere may lead to what must not run again
          add(evaluate(std::move(mixed)), plans[i + 1].prices);
        }
      }
    }
  }

  // From each target's plan, what runs again is kept after all, and what is packed whole, where the target allows it.
  void polish() {
    const int most = std::clamp(kTriedPositions / std::max(model_.positions, 1), kFewestTries, kMostTries);
    for (int64_t target : targets()) {
      const FoundPlan* best = fastest_within(target);
      if (best == nullptr) continue;
      FoundPlan plan = *best;
      int tries = 0;
      for (bool improved = true; improved && tries < most;) {
        improved = false;
        for (const auto& [value, way] : dearest(plan)) {
          if (++tries > most) break;
          Kept kept = plan.kept;
          kept[value] = way;
          const Outcome& tried = outcome(kept);
          if (tried.is_deep || tried.peak_bytes > target || tried.milliseconds >= plan.milliseconds) continue;
          plan.kept = std::move(kept);
          plan.peak_bytes = tried.peak_bytes;
          plan.milliseconds = tried.milliseconds;
          improved = true;
          break;
        }
      }
      add(std::move(plan));
    }
  }

  // What backward may read, or what leads there, and may be made again or packed: the rest has no choice.
  void find_choices() {
    std::vector<bool> is_seen(model_.values.size());
    std::vector<int32_t> pending;
    const auto see = [&](int32_t value) {
      if (!model_.values[static_cast<size_t>(value)].is_optional || is_seen[static_cast<size_t>(value)]) return;
      is_seen[static_cast<size_t>(value)] = true;
      pending.push_back(value);
    };
    for (size_t i = 0; i < model_.values.size(); ++i)
      if (model_.values[i].first_in_backward >= 0) see(static_cast<int32_t>(i));
    for (size_t i = 0; i < pending.size(); ++i) {
      const ModelValue& value = model_.values[static_cast<size_t>(pending[i])];
      if (!value.may_run_again) must_stay_.push_back(static_cast<size_t>(pending[i]));
      if (ways_of(static_cast<size_t>(pending[i])).size() > 1) choices_.push_back(static_cast<size_t>(pending[i]));
      if (!value.may_run_again) continue;
      for (int32_t read : model_.reads_again[static_cast<size_t>(value.producer)]) see(read);
    }
    std::sort(choices_.begin(), choices_.end());
  }

  void keep_what_must_stay(Kept& kept) const {
    for (size_t value : must_stay_)
      if (kept[value] == Keep::kAgain) kept[value] = Keep::kWhole;
  }

  // Values whose other choice may help the step: where it needs more than the target, what is kept over the place where
  // it needs most, and what runs again there; where it does not, all that runs again.
  std::vector<size_t> find_helpful(const Kept& kept, const SimulatedStep& step, int64_t target) const {
    const int32_t most =
        static_cast<int32_t>(std::max_element(step.bytes.begin(), step.bytes.end()) - step.bytes.begin());
    const bool is_over = step.peak_bytes > target;
    std::vector<int32_t> slots(static_cast<size_t>(model_.positions), -1);
    for (size_t i = 0; i < step.again.size(); ++i) slots[static_cast<size_t>(step.again[i])] = step.slots[i];
    std::vector<size_t> helpful;
    for (size_t choice : choices_) {
      const ModelValue& value = model_.values[choice];
      const int32_t slot = slots[static_cast<size_t>(value.producer)];
      const bool is_held =
          value.last_in_forward < most && (value.first_in_backward < 0 || most < value.first_in_backward);
      const bool helps = kept[choice] == Keep::kAgain ? (is_over ? slot == most : slot >= 0)
                         : is_over                    ? is_held
                                                      : kept[choice] == Keep::kPacked;
      if (helps) helpful.push_back(choice);
    }
    return helpful;
  }

  // One value or two another way; or one given up and kept in its place what its node reads.
  Kept move(Kept kept, const std::vector<size_t>& helpful, SplitMix& random) const {
    const auto turn = [&](size_t value) {
      const std::span<const Keep> ways = ways_of(value);
      const uint32_t others = static_cast<uint32_t>(ways.size()) - 1;
      const size_t step = 1 + (others > 1 ? random.below(others) : 0);
      const size_t now = static_cast<size_t>(std::find(ways.begin(), ways.end(), kept[value]) - ways.begin());
      kept[value] = ways[(now + step) % ways.size()];
    };
    const auto any_of = [&](const std::vector<size_t>& values) {
      return values[random.below(static_cast<uint32_t>(values.size()))];
    };
    const size_t value = any_of(!helpful.empty() && random.chance(60) ? helpful : choices_);
    turn(value);
    const uint32_t kind = random.below(3);
    if (kind == 1) turn(any_of(choices_));
    if (kind == 2 && model_.values[value].may_run_again) {
      const std::span<const int32_t> reads = model_.reads_again[static_cast<size_t>(model_.values[value].producer)];
      if (reads.empty()) return kept;
      const size_t read = static_cast<size_t>(reads[random.below(static_cast<uint32_t>(reads.size()))]);
      if (model_.values[read].may_run_again) kept[read] = kept[value] == Keep::kAgain ? Keep::kWhole : Keep::kAgain;
    }
    return kept;
  }

  // Moves from a plan that are taken where they lower what `worth` says of peak and time, and less and less often where
  // they do not.
  template <class Worth>
  void anneal_from(const FoundPlan& start, int64_t target, int most, double most_heat, uint64_t seed, Worth worth) {
    if (choices_.size() < 2 || most == 0) return;
    SplitMix random(seed);
    const BytePrices at_prices = start.prices;
    Kept kept = start.kept;
    keep_what_must_stay(kept);
    double now = worth(start.peak_bytes, start.milliseconds);
    std::vector<size_t> helpful = find_helpful(kept, simulate(model_, kept), target);
    for (int i = 0; i < most; ++i) {
      const double heat = most_heat * (most - i) / most;
      Kept moved = move(kept, helpful, random);
      const double luck = random.unit();
      const SimulatedStep tried = simulate(model_, moved);
      if (tried.is_deep) continue;
      const double then = worth(tried.peak_bytes, tried.milliseconds);
      if (then > now && luck > std::exp((now - then) / heat)) continue;
      add({moved, tried.peak_bytes, tried.milliseconds, at_prices});
      helpful = find_helpful(moved, tried, target);
      kept = std::move(moved);
      now = then;
    }
  }

  // From each target's plan, so that the time falls, and what the target is exceeded by. The least target first: what
  // is found there is a start for the others too.
  void anneal() {
    const std::vector<int64_t> ladder = targets();
    for (size_t i = ladder.size(); i-- > 0;) {
      const int64_t target = ladder[i];
      const FoundPlan* start = fastest_within(target);
      if (start == nullptr) continue;
      const double extra = std::max(start->milliseconds - default_milliseconds_, 0.001 * default_milliseconds_);
      anneal_from(FoundPlan(*start), target, moves(), 0.2 * extra, 1, [&](int64_t peak_bytes, double milliseconds) {
        const double over = static_cast<double>(peak_bytes - target) / static_cast<double>(target);
        return milliseconds + (over > 0 ? extra * (0.02 + 20 * over) : 0);
      });
    }
  }

  // What could be kept, and how, by the time that it saves for a byte.
  std::vector<std::pair<size_t, Keep>> dearest(const FoundPlan& plan) {
    const Tried tried = evaluate(plan.kept);
    std::vector<std::tuple<double, size_t, Keep>> found;
    const auto see = [&](size_t value, Keep way, double milliseconds, int64_t bytes) {
      found.emplace_back(-milliseconds / static_cast<double>(bytes + 1), value, way);
    };
    for (int32_t position : tried.step.again)
      for (int32_t made : model_.makes[static_cast<size_t>(position)]) {
        const size_t number = static_cast<size_t>(made);
        const ModelValue& value = model_.values[number];
        if (!value.is_optional || plan.kept[number] != Keep::kAgain) continue;
        const double milliseconds = model_.milliseconds[static_cast<size_t>(position)];
        see(number, Keep::kWhole, milliseconds, value.bytes);
        if (value.packed_bytes > 0)
          see(number, Keep::kPacked, milliseconds - value.packing_milliseconds, value.packed_bytes);
      }
    for (int32_t packed : tried.step.packed) {
      const ModelValue& value = model_.values[static_cast<size_t>(packed)];
      see(static_cast<size_t>(packed), Keep::kWhole, value.packing_milliseconds, value.bytes - value.packed_bytes);
    }
    std::sort(found.begin(), found.end());
    std::vector<std::pair<size_t, Keep>> values;
    for (const auto& [price, value, way] : found) values.emplace_back(value, way);
    return values;
  }

  const StepModel& model_;
  const std::vector<int32_t>& layers_;
  PriceCut cut_;
  std::vector<double> share_;  // of each position in the price; 1 in all
  double level_ = 0;           // milliseconds a byte, of all positions together
  int64_t default_peak_ = 0, floor_ = 0;
  double default_milliseconds_ = 0;
  std::vector<size_t> choices_, must_stay_;
  std::unordered_map<Kept, Outcome, HashOfKept> known_;
  std::vector<FoundPlan> plans_;
};

}  // namespace

std::vector<FoundPlan> search_plans(const StepModel& model, const std::vector<int32_t>& layer_of_value) {
  return Search(model, layer_of_value).run();
}

}  // namespace lowtide
