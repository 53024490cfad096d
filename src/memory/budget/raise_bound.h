// Prices that prove more: where the choice that is cheapest at the prices needs more than the budget a byte gets
// dearer, where it needs less, cheaper.
//
// A projected subgradient method with steps after B. T. Polyak, "Minimization of unsmooth functionals", 1969: as long
// as what is missing to the time of a plan that is known.
#pragma once

#include "memory/budget/price_cut.h"

namespace lowtide {

struct ProvenTime {
  double milliseconds = 0;  // that running nodes again takes at least
  BytePrices prices;        // that prove it
};

// From `start` on, so many steps. `known`: what running nodes again takes in a plan that keeps within the budget.
ProvenTime raise_bound(PriceCut& cut, BytePrices start, int64_t budget, double known, int steps);

}  // namespace lowtide
