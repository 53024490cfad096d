// All plans of a small step, for tests: the slow obvious way to the best.
#pragma once

#include <limits>

#include "memory/budget/step_of_nodes.h"

namespace lowtide {

struct TriedPlan {
  Kept kept;
  SimulatedStep step;
};

// Those of every choice of the values that may run again or be packed; the others are kept.
inline std::vector<TriedPlan> every_plan(const StepModel& model) {
  Kept kept(model.values.size());
  std::vector<std::pair<size_t, std::vector<Keep>>> choices;
  for (size_t i = 0; i < model.values.size(); ++i) {
    const ModelValue& value = model.values[i];
    if (!value.is_optional) continue;
    std::vector<Keep> ways = {Keep::kWhole};
    if (value.may_run_again) ways.push_back(Keep::kAgain);
    if (value.packed_bytes > 0) ways.push_back(Keep::kPacked);
    kept[i] = Keep::kWhole;
    if (ways.size() > 1) choices.emplace_back(i, std::move(ways));
  }
  std::vector<TriedPlan> plans;
  std::vector<size_t> taken(choices.size());  // a number whose digits are the ways
  for (size_t digit = 0; digit < choices.size() || plans.empty();) {
    for (size_t i = 0; i < choices.size(); ++i) kept[choices[i].first] = choices[i].second[taken[i]];
    plans.push_back({kept, simulate(model, kept)});
    for (digit = 0; digit < choices.size(); ++digit) {
      if (++taken[digit] < choices[digit].second.size()) break;
      taken[digit] = 0;
    }
  }
  return plans;
}

// Beyond that of a step that runs every node once.
inline double extra_of(const StepModel& model, const SimulatedStep& step) {
  double once = 0;
  for (double milliseconds : model.milliseconds) once += milliseconds;
  return step.milliseconds - once;
}

inline double least_extra(const StepModel& model, const std::vector<TriedPlan>& plans, int64_t budget) {
  double best = std::numeric_limits<double>::infinity();
  for (const TriedPlan& plan : plans)
    if (plan.step.peak_bytes <= budget) best = std::min(best, extra_of(model, plan.step));
  return best;
}

}  // namespace lowtide
