// The independent check of a packing: one walk over the steps, sharing no code with the packers. Always on.
#pragma once

#include <optional>
#include <string>

#include "pack/problem.h"

namespace lowtide {

// nullopt if the solution is valid; otherwise what is wrong, naming the buffers by index.
std::optional<std::string> validate(const Problem& problem, const Solution& solution);

}  // namespace lowtide
