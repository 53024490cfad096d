#include "lower/targets.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace lowtide {

static constexpr Target kTargets[] = {
#define LT_LOWER(target, function, op) {"aten::" target, function, Op::k##op},
#define LT_LOWER_OF(target, function, op) {target, function, Op::k##op},
#include "lower/targets.def"
};

std::span<const Target> all_targets() { return kTargets; }

const Target* find_target(std::string_view name) {
  static const std::map<std::string_view, const Target*> by_name = [] {
    std::map<std::string_view, const Target*> result;
    for (const Target& target : kTargets) result.emplace(target.name, &target);
    return result;
  }();
  auto at = by_name.find(name);
  return at == by_name.end() ? nullptr : at->second;
}

bool only_moves(const Target& target) {
  constexpr Lowering kMoves[] = {lower_same,    lower_clone,   lower_detach,    lower_reshape, lower_transpose,
                                 lower_permute, lower_movedim, lower_unsqueeze, lower_squeeze};
  return std::find(std::begin(kMoves), std::end(kMoves), target.lower) != std::end(kMoves);
}

}  // namespace lowtide
