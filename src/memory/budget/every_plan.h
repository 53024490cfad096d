// All plans of a small step, for tests: the slow obvious way to the best.
#pragma once

#include <limits>

#include "memory/budget/step_of_nodes.h"

namespace lowtide {

struct TriedPlan {
  Kept kept;
  SimulatedStep step;
};

// Those of every choice of the values that may run again; those that may not are kept.
inline std::vector<TriedPlan> every_plan(const StepModel& model) {
  std::vector<size_t> free;
  Kept kept(model.values.size());
  for (size_t i = 0; i < model.values.size(); ++i) {
    if (!model.values[i].is_optional) continue;
    kept[i] = !model.values[i].may_run_again;
    if (!kept[i]) free.push_back(i);
  }
  std::vector<TriedPlan> plans;
  for (uint32_t choice = 0; choice < (1u << free.size()); ++choice) {
    for (size_t i = 0; i < free.size(); ++i) kept[free[i]] = (choice >> i) & 1;
    plans.push_back({kept, simulate(model, kept)});
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
