// What a step of a graph takes: the one answer that tables, the budget, reports and a session's own plan share.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "bind/report.h"
#include "emit/plan.h"

namespace lowtide {

// The program's sizes by name where its symbols have these values; a size that a step writes is the most that it may
// be.
DimValues named_sizes(const Program& program, std::span<const int64_t> symbol_values);

// Planned and packed at these sizes (of the program's symbols, in their order) as a session does it; nothing is
// estimated. `guard`: with room for canaries.
MemoryReport planned_memory(const Program& program, std::span<const int64_t> symbol_values, bool guard = false);
MemoryReport planned_memory(const Graph& graph, const PlanOptions& options, std::span<const int64_t> symbol_values,
                            bool guard = false);

// At each of the sizes, as a session plans that meets them in this order: packed thoroughly at the first, with what
// packed best there at the others. None where the graph's inputs cannot have such sizes.
std::vector<std::optional<MemoryReport>> planned_memory_at(const Program& program, std::span<const DimValues> sizes);

}  // namespace lowtide
