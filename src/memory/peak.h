// What a step of a graph takes: the one answer that tables, the budget, reports and a session's own plan share.
#pragma once

#include <span>

#include "bind/report.h"
#include "emit/plan.h"

namespace lowtide {

// Planned and packed at these sizes (of the program's symbols, in their order) as a session does it; nothing is
// estimated. `guard`: with room for canaries.
MemoryReport planned_memory(const Program& program, std::span<const int64_t> symbol_values, bool guard = false);
MemoryReport planned_memory(const Graph& graph, const PlanOptions& options, std::span<const int64_t> symbol_values,
                            bool guard = false);

}  // namespace lowtide
