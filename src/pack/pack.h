// The best packing that an effort buys. Deterministic: effort is counted in work done, never in time.
#pragma once

#include <span>

#include "pack/problem.h"

namespace lowtide {

enum class PackEffort {
  kFast,      // at most 5 ms for 1,000 buffers: binding new dims, when a good order is known from planning
  kThorough,  // under a second for 1,000 buffers: planning
};

// Stops as soon as the lower bound is reached. `known_order` (a permutation, or empty) is tried first.
Solution pack(const Problem& problem, PackEffort effort, std::span<const int32_t> known_order = {});

}  // namespace lowtide
