// The bytes that are live at each node of a planned graph, from where a search for a better plan may change lives.
#pragma once

#include "bind/binding.h"
#include "emit/plan.h"
#include "schedule/timeline.h"

namespace lowtide {

// Of the arena. Lives are those of the graph's values (schedule/lifetimes.h); the plan adds what the graph does not
// tell: what works in place, copies that kernels ask for, scratch. `plan` is of `graph`, the binding of the plan's
// program, at `dims`.
Timeline plan_timeline(const Graph& graph, const PlanResult& plan, const Binding& binding, const DimValues& dims);

}  // namespace lowtide
