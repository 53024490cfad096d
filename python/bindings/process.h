// What the process has beside sessions, for the Python module.
#pragma once

#include <nanobind/nanobind.h>

#include "kernels/statistics.h"

namespace lowtide::bindings {

// (dtype, shape, (min, max, mean, std), (nan, inf, negative, positive, zero), first elements)
nanobind::tuple statistics_to_python(const Statistics& found);

}  // namespace lowtide::bindings
