#include "memory/budget/archive.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <map>
#include <optional>

#include "base/check.h"
#include "base/parallel.h"
#include "bind/binding.h"
#include "memory/budget/price_cut.h"
#include "memory/budget/raise_bound.h"
#include "memory/budget/recipes.h"
#include "memory/budget/search.h"
#include "memory/late_plan.h"
#include "memory/peak.h"

namespace lowtide {

namespace {

// Rungs that are planned and packed, at most: fewer where planning one takes longer.
constexpr int kFewestRungs = 8, kMostRungs = 40, kPlannedPositions = 60000;
// Positions of a step for which plans are sought a second time, below the least that was found.
constexpr int kForeseenPositions = 2000;
// When the last bytes are sought: values of less than this share of the peak are left as they are, and so is the plan
// where less is saved.
constexpr int64_t kLeastShare = 500;
constexpr int kDescendedPositions = 8000;
// Cuts that raise a rung's bound: fewer where one takes longer.
constexpr int kFewestCuts = 6, kMostCuts = 60, kRaisedPositions = 60000;

// To nanoseconds, as they are stored.
double rounded(double milliseconds) { return std::round(milliseconds * 1e6) / 1e6; }

// The rung's plan at the archive's sizes.
struct PlannedRung {
  PlanResult plan;
  std::unique_ptr<Binding> binding;
};

PlannedRung planned(const ArchiveContext& context, std::span<const int64_t> symbol_values, Rung& rung) {
  PlanOptions options = context.options;
  options.row_blocks = without_prices(rung.row_blocks);
  PlanResult result = plan(context.optimizer.rewrite(rung.recipes), options);
  std::unique_ptr<Binding> binding =
      bind_program(result.program, {symbol_values.begin(), symbol_values.end()}, {}, context.guard);
  rung.program = result.program;
  rung.program.pack_order = binding->pack_order;
  rung.peak_bytes = binding->report.peak_bytes;
  rung.arena_bytes = binding->report.arena_bytes;
  return {std::move(result), std::move(binding)};
}

class ArchiveBuilder {
 public:
  ArchiveBuilder(const ArchiveContext& context, const PlanResult& plan_before, std::span<const int64_t> symbol_values,
                 const Prices& prices)
      : context_(context),
        optimizer_(context.optimizer),
        graph_(optimizer_.context().graph),
        stash_(graph_, plan_before),
        symbol_values_(symbol_values),
        prices_(prices) {
    archive_.symbol_values.assign(symbol_values.begin(), symbol_values.end());
    const Program& program = plan_before.program;
    archive_.dims = named_sizes(program, symbol_values);
    const std::unique_ptr<Binding> binding =
        bind_program(program, {symbol_values.begin(), symbol_values.end()}, program.pack_order, context.guard);
    model_ =
        model_step(optimizer_.context(), stash_, plan_before, *binding, archive_.dims, prices, optimizer_.defaults());
  }

  PlanArchive run() {
    std::vector<int32_t> layers;
    for (const ModelValue& value : model_.values)
      layers.push_back(optimizer_.context().layers.find(graph_.value(value.value).producer));
    const Kept by_default = kept_by_default(model_);
    const SimulatedStep default_step = simulate(model_, by_default);
    default_milliseconds_ = default_step.milliseconds;
    default_again_milliseconds_ =
        default_milliseconds_ - simulate(model_, Kept(model_.values.size(), Keep::kWhole)).milliseconds;
    const std::vector<FoundPlan> found = search_plans(model_, layers);
    std::vector<FoundPlan> plans{{by_default, 0, 0, {}}};
    for (const FoundPlan* plan : spread(found))
      if (plan->kept != by_default) plans.push_back(*plan);
    std::vector<Sought> sought = seek_all(plans);
    seek_below(sought, found.back().kept, layers);
    descend(sought);
    keep_best(std::move(sought));
    archive_.knee = find_knee();
    return std::move(archive_);
  }

 private:
  struct Sought {
    Rung rung;
    BytePrices prices;
    int64_t arena_without_blocks = 0;
    Kept kept;
  };

  // What seek finds for each plan, in their order; they have nothing to do with each other.
  std::vector<Sought> seek_all(const std::vector<FoundPlan>& plans, int64_t most_block_rows = kMostBlockRows) const {
    std::vector<std::vector<Sought>> found(plans.size());
    std::vector<std::exception_ptr> failures(plans.size());
    parallel_for(static_cast<int64_t>(plans.size()), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        try {
          seek(plans[i].kept, plans[i].prices, most_block_rows, found[i]);
        } catch (...) {
          failures[i] = std::current_exception();
        }
      }
    });
    std::vector<Sought> sought;
    for (size_t i = 0; i < plans.size(); ++i) {
      if (failures[i]) std::rethrow_exception(failures[i]);
      std::move(found[i].begin(), found[i].end(), std::back_inserter(sought));
    }
    return sought;
  }

  // The plan that keeps these values, and the same with row blocks where they lower its peak.
  void seek(const Kept& kept, const BytePrices& prices, int64_t most_block_rows, std::vector<Sought>& sought) const {
    const SimulatedStep step = simulate(model_, kept);
    Rung rung;
    rung.recipes = recipes_of(model_, kept, optimizer_.context(), stash_);
    for (int32_t position : step.again) rung.again.push_back(graph_.order()[static_cast<size_t>(position)]);
    for (int32_t value : step.packed) rung.packed.push_back(model_.values[static_cast<size_t>(value)].value);
    const auto [plan, binding] = planned(context_, symbol_values_, rung);
    rung.milliseconds = rounded(step.milliseconds);
    rung.extra_milliseconds = rounded(step.milliseconds - default_milliseconds_);
    sought.push_back({rung, prices, rung.arena_bytes, kept});
    rung.row_blocks = choose_row_blocks(plan, *binding, archive_.dims, prices_, most_block_rows);
    if (rung.row_blocks.empty()) return;
    planned(context_, symbol_values_, rung);
    const double blocks = extra_milliseconds(rung.row_blocks, archive_.dims);
    rung.milliseconds = rounded(step.milliseconds + blocks);
    rung.extra_milliseconds = rounded(step.milliseconds - default_milliseconds_ + blocks);
    if (rung.peak_bytes >= sought.back().rung.peak_bytes) return;
    sought.push_back({std::move(rung), prices, sought.back().arena_without_blocks, kept});
  }

  // From the least on down, by the smallest row blocks, as long as it helps to run one more of the values again that
  // are live where the plan needs most. What makes it again may stand in row blocks then, of which the model knows
  // nothing; what needs no blocks the search has found.
  void descend(std::vector<Sought>& sought) const {
    int plans = kDescendedPositions / std::max(model_.positions, 1);
    while (plans > 0) {
      const Sought& least =
          *std::ranges::min_element(sought, {}, [](const Sought& each) { return each.rung.peak_bytes; });
      const int64_t peak = least.rung.peak_bytes;
      std::vector<FoundPlan> next = {{least.kept, 0, 0, least.prices}};
      for (size_t value : kept_where_most(least)) {
        if (plans-- <= 0) break;
        next.push_back({least.kept, 0, 0, least.prices});
        next.back().kept[value] = Keep::kAgain;
        if (simulate(model_, next.back().kept).is_deep) next.pop_back();
      }
      bool helps = false;
      for (Sought& each : seek_all(next, kSumBlockRows)) {
        if (each.rung.peak_bytes >= peak || each.rung.row_blocks.empty()) continue;
        helps = helps || each.rung.peak_bytes < peak - peak / kLeastShare;
        sought.push_back(std::move(each));
      }
      if (!helps) return;
    }
  }

  // Values of the model that the plan keeps over the step where most bytes are live, the largest first.
  std::vector<size_t> kept_where_most(const Sought& sought) const {
    Rung rung = sought.rung;
    const auto [plan, binding] = planned(context_, symbol_values_, rung);
    const int32_t most = bytes_by_step(plan.program, *binding).peak_position();
    std::vector<std::pair<int64_t, size_t>> found;
    for (size_t i = 0; i < model_.values.size(); ++i) {
      if (!model_.values[i].is_optional || sought.kept[i] == Keep::kAgain) continue;
      const int32_t at = plan.value_buffers[model_.values[i].value.at()];
      if (at < 0) continue;
      const ProgramBuffer& buffer = plan.program.buffers[static_cast<size_t>(at)];
      const int64_t bytes = binding->buffer_bytes[static_cast<size_t>(at)];
      if (buffer.first <= most && most <= buffer.last && bytes > rung.peak_bytes / kLeastShare)
        found.emplace_back(-bytes, i);
    }
    std::ranges::sort(found);
    std::vector<size_t> values;
    for (const auto& [bytes, value] : found) values.push_back(value);
    return values;
  }

  // Plans below the least, whose search counts on the row blocks that the least would have if they alone set its peak.
  void seek_below(std::vector<Sought>& sought, const Kept& least, const std::vector<int32_t>& layers) const {
    if (model_.positions > kForeseenPositions) return;
    const auto peak = [](const Sought& each) { return each.rung.peak_bytes; };
    const int64_t floor = peak(*std::min_element(sought.begin(), sought.end(),
                                                 [&](const Sought& a, const Sought& b) { return peak(a) < peak(b); }));
    StepModel with_blocks = model_;
    if (!count_on_row_blocks(least, with_blocks)) return;
    std::vector<FoundPlan> below;
    for (const FoundPlan& plan : search_plans(with_blocks, layers))
      if (plan.peak_bytes + model_.other_bytes < floor) below.push_back(plan);
    if (below.empty()) return;
    std::vector<FoundPlan> chosen;
    for (const FoundPlan* plan : spread(below, kFewestRungs)) chosen.push_back(*plan);
    std::ranges::move(seek_all(chosen), std::back_inserter(sought));
  }

  // What row blocks save at the positions of this plan, as bytes of the model; whether they save any.
  bool count_on_row_blocks(const Kept& kept, StepModel& model) const {
    Rung rung;
    rung.recipes = recipes_of(model_, kept, optimizer_.context(), stash_);
    const auto [plan, binding] = planned(context_, symbol_values_, rung);
    const ForeseenBytes bytes = foresee_row_blocks(plan, *binding, archive_.dims, prices_);
    std::map<NodeId, int32_t> positions;
    for (const NodeId id : graph_.order()) positions.emplace(id, static_cast<int32_t>(positions.size()));
    // What runs again counts where the next node does that is not new.
    const std::vector<NodeId> order = optimizer_.rewrite(rung.recipes).order();
    std::vector<int32_t> slots(order.size());
    int32_t next = model.positions - 1;
    for (size_t i = order.size(); i-- > 0; slots[i] = next)
      if (const auto at = positions.find(order[i]); at != positions.end()) next = at->second;
    std::vector<int64_t> without(static_cast<size_t>(model.positions), 0), with = without;
    for (size_t step = 0; step < bytes.with.size(); ++step) {
      const auto slot = static_cast<size_t>(slots[static_cast<size_t>(plan.step_positions[step])]);
      without[slot] = std::max(without[slot], bytes.without[step]);
      with[slot] = std::max(with[slot], bytes.with[step]);
    }
    bool saves = false;
    for (int32_t i = 0; i < model.positions; ++i) {
      const int64_t saved = without[static_cast<size_t>(i)] - with[static_cast<size_t>(i)];
      if (saved <= 0) continue;
      model.fixed.push_back({i, i, -saved});
      saves = true;
    }
    return saves;
  }

  // Both ends, and between them those whose peaks lie farthest apart.
  std::vector<const FoundPlan*> spread(const std::vector<FoundPlan>& found, int at_most = kMostRungs) const {
    const int most = std::clamp(kPlannedPositions / std::max(model_.positions, 1), kFewestRungs, at_most);
    std::vector<const FoundPlan*> result;
    const double high = std::log(static_cast<double>(found.front().peak_bytes) + 1);
    const double low = std::log(static_cast<double>(found.back().peak_bytes) + 1);
    double next = high;
    for (const FoundPlan& plan : found) {
      const double at = std::log(static_cast<double>(plan.peak_bytes) + 1);
      if (&plan != &found.front() && &plan != &found.back() && at > next) continue;
      result.push_back(&plan);
      next = at - (high - low) / (most - 1);
    }
    return result;
  }

  // What is in force without a budget is the first; behind it, what needs less than all that are as fast.
  void keep_best(std::vector<Sought> sought) {
    std::stable_sort(sought.begin() + 1, sought.end(), [](const Sought& a, const Sought& b) {
      return std::pair(a.rung.milliseconds, a.rung.peak_bytes) < std::pair(b.rung.milliseconds, b.rung.peak_bytes);
    });
    std::vector<BytePrices> prices;
    std::vector<int64_t> arenas;
    for (auto& [rung, at_prices, arena, kept] : sought) {
      if (!archive_.rungs.empty() && rung.peak_bytes >= archive_.rungs.back().peak_bytes) continue;
      prices.push_back(std::move(at_prices));
      arenas.push_back(arena);
      archive_.rungs.push_back(std::move(rung));
    }
    bound_rungs(prices, arenas);
  }

  // `arenas`: of the rungs, without row blocks.
  void bound_rungs(const std::vector<BytePrices>& prices, const std::vector<int64_t>& arenas) {
    PriceCut cut(model_);
    BoundRaiser raiser(cut);
    const int cuts = std::clamp(kRaisedPositions / std::max(model_.positions, 1), kFewestCuts, kMostCuts);
    ProvenTime proven;
    // With nothing run again; without a budget the default strategies let something.
    archive_.rungs[0].least_extra_milliseconds = -rounded(default_again_milliseconds_);
    for (size_t i = 1; i < archive_.rungs.size(); ++i) {
      Rung& rung = archive_.rungs[i];
      proven.milliseconds = proven.prices.empty() ? 0 : cut.bound(proven.prices, arenas[i]);
      if (const double bound = prices[i].empty() ? 0 : cut.bound(prices[i], arenas[i]); bound > proven.milliseconds)
        proven = {bound, prices[i]};
      if (!proven.prices.empty())
        proven = raiser.raise(proven.prices, arenas[i], rung.extra_milliseconds + default_again_milliseconds_, cuts);
      rung.least_extra_milliseconds = std::max(archive_.rungs[i - 1].least_extra_milliseconds,
                                               rounded(proven.milliseconds - default_again_milliseconds_));
    }
  }

  // The rung that lies farthest below the straight line between both ends.
  size_t find_knee() const {
    const Rung &first = archive_.rungs.front(), &last = archive_.rungs.back();
    const double bytes = static_cast<double>(first.peak_bytes - last.peak_bytes);
    const double time = last.milliseconds - first.milliseconds;
    size_t best = 0;
    double farthest = 0;
    for (size_t i = 0; i < archive_.rungs.size() && bytes > 0 && time > 0; ++i) {
      const Rung& rung = archive_.rungs[i];
      const double saved = static_cast<double>(first.peak_bytes - rung.peak_bytes) / bytes;
      const double paid = (rung.milliseconds - first.milliseconds) / time;
      if (saved - paid > farthest) {
        farthest = saved - paid;
        best = i;
      }
    }
    return best;
  }

  const ArchiveContext& context_;
  const MemoryOptimizer& optimizer_;
  const Graph& graph_;
  const StashAnalysis stash_;  // nothing made again
  const std::span<const int64_t> symbol_values_;
  const Prices& prices_;
  double default_milliseconds_ = 0;
  double default_again_milliseconds_ =
      0;  // of what the default strategies let run again, which the bound takes for free
  StepModel model_;
  PlanArchive archive_;
};

}  // namespace

PlanArchive build_archive(const ArchiveContext& context, const PlanResult& plan_before,
                          std::span<const int64_t> symbol_values, const Prices& prices) {
  return ArchiveBuilder(context, plan_before, symbol_values, prices).run();
}

ServedRung serve_rung(const ArchiveContext& context, const PlanArchive& archive, const Rung& rung) {
  PlanOptions options = context.options;
  options.row_blocks = without_prices(rung.row_blocks);
  Graph graph = context.optimizer.rewrite(rung.recipes);
  std::optional<LatePlan> late = plan_late(graph, rung.program, options, {archive.dims}, true);
  if (!late) {
    PlanResult result = plan(graph, options);
    result.program.pack_order = rung.program.pack_order;
    return {std::move(graph), std::move(result)};
  }
  late->plan.program.pack_order =
      bind_program(late->plan.program, archive.symbol_values, {}, context.guard)->pack_order;
  return {std::move(late->graph), std::move(late->plan)};
}

void plan_rung(const ArchiveContext& context, std::span<const int64_t> symbol_values, Rung& rung) {
  planned(context, symbol_values, rung);
}

}  // namespace lowtide
