// What users ask of the memory optimizer: ORTMODULE_MEMORY_OPT_CONFIG, _LEVEL and _PROBE_CONFIG.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "memory/strategy.h"

namespace lowtide {

// One plan of a configuration: "FastGelu+:1:12".
struct MemoryRequest {
  std::string cluster;
  OptimizationType type = OptimizationType::kRecompute;
  int count = -1;  // the first N in topological order; -1: all
  friend bool operator==(const MemoryRequest&, const MemoryRequest&) = default;
};
std::string to_string(const MemoryRequest& request);  // as in a configuration

// `config`: plans joined by commas, or the path of a JSON file with a list of such strings (it ends in ".json" or a
// file of that name exists). Spaces around parts and empty parts are ignored. The same cluster and type twice: the last
// one holds. Type 0 stands for "leave alone": it takes back what was asked before of the cluster in any type, and is
// taken back by what is asked after it. Error(kInvalidArgument) with the position, what was expected, and an example.
std::vector<MemoryRequest> parse_memory_config(std::string_view config);

struct ProbeConfig {
  int level = 1;     // 0: cheap ops only; 1: costly ones too
  int boundary = 0;  // 1: the inputs of layers stay stashed
};
ProbeConfig parse_probe_config(std::string_view text);  // "level:boundary" or "level"; empty: the defaults

// The `most` names of `known` that are nearest to `name` by edits of whole op types, nearest first.
std::vector<std::string> nearest_clusters(std::string_view name, const std::vector<std::string>& known, size_t most);

}  // namespace lowtide
