// A packing of two parts, for steps that rest in their middle.
#pragma once

#include "pack/problem.h"

namespace lowtide {

struct TwoParts {
  Solution solution;  // without an order
  int64_t below_bytes = 0;
};

// Buffers that live both before step `middle` and from it on lie in [0, below_bytes), which is no more than they need;
// no buffer lies on both sides of that border. So nothing lies above it while no step runs between the two. All
// alignments are to be 64.
TwoParts pack_in_two(const Problem& problem, int32_t middle);

}  // namespace lowtide
