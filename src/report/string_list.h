// A JSON array of strings: the file form of ORTMODULE_MEMORY_OPT_CONFIG.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lowtide {

// Strict JSON; anything but an array of strings is Error(kInvalidArgument) with `file` and the character's offset.
std::vector<std::string> parse_string_list(std::string_view json, std::string_view file);

}  // namespace lowtide
