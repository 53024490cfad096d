// Plans of one graph from the fastest to the smallest: which values to keep so that the peak falls at the least extra
// time.
//
//   prices on the time line → the cheapest choice at these prices (a minimum cut) → a simulated step → where it needs
//   too much, a byte gets dearer → …
//
// for a fixed ladder of targets between what the plan without budget needs and the least that was found; then, for each
// target, single layers and single values are tried by themselves. Work is counted in simulated steps, never in
// seconds, so that the same graph gives the same plans.
#pragma once

#include <vector>

#include "memory/budget/model.h"
#include "memory/budget/price_cut.h"

namespace lowtide {

struct FoundPlan {
  Kept kept;
  int64_t peak_bytes = 0;  // simulated
  double milliseconds = 0;
  BytePrices prices;  // at which a target near this peak was sought
};

// The plan without budget first; then each with a lower peak and more time than the one before. `layer_of_value`: of
// the model's values, -1: of none.
std::vector<FoundPlan> search_plans(const StepModel& model, const std::vector<int32_t>& layer_of_value);

}  // namespace lowtide
