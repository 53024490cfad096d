// What users ask of the memory optimizer: ORTMODULE_MEMORY_OPT_CONFIG, _LEVEL and _PROBE_CONFIG.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "memory/optimizer.h"

namespace lowtide {

std::string to_string(const MemoryRequest& request);  // as in a configuration

// `config`: plans joined by commas, or the path of a JSON file with a list of such strings (it ends in ".json" or a
// file of that name exists). Spaces around parts and empty parts are ignored. The same cluster and type twice: the last
// one holds. Type 0 stands for "leave alone": it takes back what was asked before of the cluster in any type, and is
// taken back by what is asked after it. Error(kInvalidArgument) with the position, what was expected, and an example.
std::vector<MemoryRequest> parse_memory_config(std::string_view config);

// Sets what ORTMODULE_MEMORY_OPT_LEVEL and ORTMODULE_MEMORY_OPT_CONFIG ask for. Beside a level the configuration is not
// even read, so that no mistake in it matters.
void ask(MemoryOptions& options, int level, std::string_view config);

ProbeConfig parse_probe_config(std::string_view text);  // "level:boundary" or "level"; empty: the defaults

// The `most` names of `known` that are nearest to `name` by edits of whole op types, nearest first.
std::vector<std::string> nearest_clusters(std::string_view name, const std::vector<std::string>& known, size_t most);

}  // namespace lowtide
