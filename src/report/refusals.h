// Why a plan that the user asked for is not among the candidates.
#pragma once

#include <span>
#include <string>

#include "memory/strategy.h"
#include "report/config.h"

namespace lowtide {

// In words that start with the request: made again by default, to be had as another type, shut out by the probe, taken
// in by a larger op, not kept for backward, or unknown, then with the nearest names.
std::string why_unknown(const MemoryRequest& request, const MemoryContext& context,
                        std::span<const Candidate> candidates);

}  // namespace lowtide
