// A plan whose messages travel while nodes run.
#pragma once

#include <optional>
#include <vector>

#include "emit/plan.h"

namespace lowtide {

struct LatePlan {
  Graph graph;  // gathers stand earlier, what reads reductions behind the waits
  PlanResult plan;
};

// `program` is the graph's under these options, which let no reduction go on. Each does so as long as
// end_reductions_late says, and gathers begin as begin_gathers_early says where `may_gather_early`, if the step needs
// no more bytes with it at any of the sizes. Nothing where none may.
std::optional<LatePlan> plan_late(const Graph& graph, const Program& program, const PlanOptions& options,
                                  const std::vector<DimValues>& sizes, bool may_gather_early);

}  // namespace lowtide
