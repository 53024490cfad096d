// For tests of what finds faults, and in their builds only (LOWTIDE_TEST_FAULTS): a step that computes wrongly,
// a lowering that fails.
#pragma once

#include "emit/plan.h"
#include "ir/graph.h"
#include "runtime/hooks.h"
#include "session/session.h"

namespace lowtide {

#ifdef LOWTIDE_TEST_FAULTS

inline bool wants_fault(const SessionOptions& options) { return !options.fault_value.empty(); }
inline std::string_view broken_lowering(const SessionOptions& options) { return options.fault_lowering; }

// After the step that makes the value, its elements are multiplied by the factor. Error(kInvalidArgument) names values
// like it where no step makes one of this name. Requires: the places of the planned values.
StepHooks fault_hooks(const Graph& graph, const PlanResult& planned, const SessionOptions& options);

#else

inline bool wants_fault(const SessionOptions&) { return false; }
inline std::string_view broken_lowering(const SessionOptions&) { return {}; }

#endif

}  // namespace lowtide
