#include "pack/pack.h"

#include <array>

#include "pack/packers.h"

namespace lowtide {

Solution pack(const Problem& problem, PackEffort effort, std::span<const int32_t> known_order) {
  (void)effort;
  check_problem(problem);
  const int64_t bound = lower_bound(problem);
  Solution best = known_order.empty() ? pack_by_area(problem) : pack_in_order(problem, known_order);
  for (const auto packer :
       {pack_by_area, pack_by_duration, pack_by_size, pack_by_pressure, pack_skyline, pack_best_fit, pack_by_start}) {
    if (best.height == bound) break;
    if (Solution next = packer(problem); next.height < best.height) best = std::move(next);
  }
  return best;
}

}  // namespace lowtide
