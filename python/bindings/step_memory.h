// What steps need, for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "session/session.h"

namespace lowtide::bindings {

nanobind::dict memory_to_python(const MemoryReport& memory);

// (plan, requested count, found, applied) of each.
nanobind::list outcomes_to_python(const std::vector<RequestOutcome>& outcomes);
nanobind::dict stat_to_python(const MemoryStat& stat);

}  // namespace lowtide::bindings
