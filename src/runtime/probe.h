// Shows the values that steps make, while their bytes are there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/hooks.h"

namespace lowtide {

// A value that an observer is shown, right before `step` runs or at the end of its region.
struct Probe {
  std::string name;
  int32_t operand = 0;
  int32_t step = 0;
  int32_t region = 0;
};
// The tensor's bytes are the engine's and stay as they are during the call only.
using Observer = std::function<void(const std::string& name, const TensorRef& tensor)>;

// `probes` in the order of steps.
StepHooks probe_hooks(std::vector<Probe> probes, Observer observer);

}  // namespace lowtide
