// What a configuration or a level switches on, and what became of each request.
#pragma once

#include <string>
#include <vector>

#include "memory/optimizer.h"

namespace lowtide {

// A request and what became of it.
struct RequestOutcome {
  MemoryRequest request;
  int found = 0;    // candidates of that cluster and type
  int applied = 0;  // that were rewritten
};

struct Selection {
  std::vector<int32_t> chosen;  // indices into candidates(), ascending
  std::vector<RequestOutcome> outcomes;
  std::vector<std::string> warnings;  // for the user: unknown clusters with their nearest, absorbed ones, level notices
};

// What the optimizer's options ask for.
Selection select(const MemoryOptimizer& optimizer);

}  // namespace lowtide
