// The table of lowerings, derived from targets.def.
#pragma once

#include <span>
#include <string_view>

#include "lower/call.h"

namespace lowtide {

using Lowering = bool (*)(Call&);

struct Target {
  std::string_view name;  // "aten::add.Tensor"
  Lowering lower;
  Op op;  // what a lowering that serves several targets emits
};

std::span<const Target> all_targets();
const Target* find_target(std::string_view name);  // nullptr: no lowering

// Whether the lowering moves elements and does not look at them: it takes complex numbers too.
bool only_moves(const Target& target);

#define LT_LOWER(target, function, op) bool function(Call&);
#include "lower/targets.def"

}  // namespace lowtide
