// The plans between the fastest and the smallest, as JSON: what each needs, costs, gives up and why.
#pragma once

#include <string>

#include "memory/budget/archive.h"

namespace lowtide {

// {"dims": {"batch": 8}, "default_peak_bytes": …, "floor_bytes": …, "knee": index, "rungs": [{"peak_bytes": …,
// "predicted_ms": …, "extra_ms": …, "bound_extra_ms": …, "ms_per_mib": …, "row_blocks": [{"rows": 4096, "block_rows":
// 1024, "steps": 9, "ms": …}], "values": […]}]}. `ms_per_mib` is what the next MiB costs: from this rung to the next.
// `graph` is that of the archive's optimizer.
std::string frontier_json(const PlanArchive& archive, const Graph& graph, const Prices& prices);

}  // namespace lowtide
