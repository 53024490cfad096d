// Local search over orders, for the problems on which no single order reaches the lower bound.
// Both searches anneal: a change is kept if the arena grows by no more than a random part of a shrinking tolerance.
// They stop at the lower bound or when the budget is spent; the best solution met is returned.
#pragma once

#include "pack/problem.h"

namespace lowtide {

// Counted in elementary steps of about a nanosecond, so that a result never depends on the machine.
struct SearchBudget {
  int64_t work = 0;
  int64_t moves = 0;  // tried at most; keeps small problems short
};

// Over the orders of first fit, from `start`: takes a buffer that ends above the bound and puts it before another one.
// The stronger one where lifetimes are irregular. Never worse than `start`.
Solution search_first_fit(const Problem& problem, const Solution& start, double tolerance, uint64_t seed,
                          const SearchBudget& budget);

// Over the priorities of the skyline. Samples weights of life and size first; then, from the best of them, either
// shakes the priorities of some stretch of the step, or finds where bytes were given up in the fullest sections and
// puts a buffer that was waiting there before one that walled it off. The stronger one where lifetimes nest, as in
// training.
Solution search_skyline(const Problem& problem, uint64_t seed, const SearchBudget& budget);

}  // namespace lowtide
