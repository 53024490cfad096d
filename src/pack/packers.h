// Ways to pack behind one signature: each takes a problem and gives a valid solution whose `order` reproduces it.
#pragma once

#include <span>

#include "pack/problem.h"

namespace lowtide {

// First fit: takes the buffers in this order (a permutation of all) and gives each the lowest offset that is free
// during its whole life.
Solution pack_in_order(const Problem& problem, std::span<const int32_t> order);

// First fit in some fixed order; ties go to the longer life, then to the smaller index.
Solution pack_by_size(const Problem& problem);      // largest first
Solution pack_by_area(const Problem& problem);      // largest size × duration first
Solution pack_by_duration(const Problem& problem);  // longest life first
Solution pack_by_start(const Problem& problem);     // earliest first, the larger first among equals
Solution pack_by_pressure(const Problem& problem);  // those live in the fullest step first, then in the next fullest …

// Largest area first, each into the tightest gap that holds it.
Solution pack_best_fit(const Problem& problem);

// Fills the arena from the bottom: looks for the steps where the filled part is lowest and puts there, of the buffers
// that live only in these steps, the one that leaves the least of them uncovered. (The best-fit skyline of strip
// packing.)
Solution pack_skyline(const Problem& problem);

// The same layout with every buffer sunk as far as those below allow: never higher.
Solution settle(const Problem& problem, std::span<const int64_t> offsets);

}  // namespace lowtide
