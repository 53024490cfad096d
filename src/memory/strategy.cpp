#include "memory/strategy.h"

#include <algorithm>

#include "base/check.h"

namespace lowtide {

std::span<const Strategy* const> strategies() {
  static constexpr const Strategy* kStrategies[] = {
#define LT_STRATEGY(name) &strategy::name,
#include "memory/strategies.def"
#undef LT_STRATEGY
  };
  return kStrategies;
}

const Strategy* find_strategy(int code) {
  for (const Strategy* strategy : strategies())
    if (code != 0 && strategy->code == code) return strategy;
  return nullptr;
}

size_t rank(const Strategy& strategy) {
  const auto at = std::find(strategies().begin(), strategies().end(), &strategy);
  LT_CHECK(at != strategies().end(), strategy.name, " is not in the list of strategies");
  return static_cast<size_t>(at - strategies().begin());
}

std::vector<Candidate> propose_candidates(const MemoryContext& context) {
  std::vector<Candidate> candidates;
  for (const Strategy* strategy : strategies()) {
    if (strategy->is_default()) continue;
    for (Candidate& candidate : strategy->propose(context)) {
      candidate.strategy = strategy;
      candidates.push_back(std::move(candidate));
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
    return context.stash.position(a.entry) < context.stash.position(b.entry);
  });
  return candidates;
}

}  // namespace lowtide
