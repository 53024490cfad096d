// An archive as text, so that a later start need not search again. What it names, it names by values of the optimizer's
// graph; programs are not in it: they follow from the recipes.
#pragma once

#include <string>
#include <string_view>

#include "memory/budget/archive.h"

namespace lowtide {

std::string print(const PlanArchive& archive, const Graph& graph);

// Error(kInvalidGraph) where the text is damaged, or names what the graph does not have. `program`: of the graph.
PlanArchive parse_archive(std::string_view text, const Graph& graph, const Program& program);

}  // namespace lowtide
