#pragma once

#include <string_view>

#include "ir/graph.h"

namespace lowtide {

// Reads what print() writes. Error(kInvalidGraph) names line and column, what was expected and what was found.
// parse(print(g)) prints the same text. The result is verified.
Graph parse(std::string_view text);

}  // namespace lowtide
