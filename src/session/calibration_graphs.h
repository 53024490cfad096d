// Small models whose steps are timed to know what kernels take on a machine.
#pragma once

#include <string>
#include <vector>

namespace lowtide {

// Forward graphs in text form, all sizes constant. Every integer input indexes a table of kCalibrationRows or more.
constexpr int64_t kCalibrationRows = 1000;
std::vector<std::string> calibration_graphs();

}  // namespace lowtide
