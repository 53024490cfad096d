#include "pack/pack.h"

#include "pack/packers.h"
#include "pack/search.h"

namespace lowtide {
namespace {

// Cheapest and most successful first.
constexpr auto kPackers = {pack_by_size,     pack_skyline,  pack_by_pressure, pack_by_area,
                           pack_by_duration, pack_by_start, pack_best_fit};

class Best {
 public:
  explicit Best(int64_t bound) : bound_(bound) {}

  // True once the lower bound is reached.
  bool offer(Solution solution) {
    if (!found_ || solution.height < solution_.height) solution_ = std::move(solution);
    found_ = true;
    return solution_.height == bound_;
  }
  const Solution& solution() const { return solution_; }

 private:
  int64_t bound_;
  bool found_ = false;
  Solution solution_;
};

// Known and by size take half a millisecond each, the samples one and a half, for 1,000 buffers.
Solution pack_fast(const Problem& problem, std::span<const int32_t> known_order) {
  Best best(lower_bound(problem));
  if (!known_order.empty() && best.offer(pack_in_order(problem, known_order))) return best.solution();
  if (best.offer(pack_by_size(problem))) return best.solution();
  best.offer(search_skyline(problem, 0, {.work = 1'300'000, .moves = 20}));
  return best.solution();
}

Solution pack_thorough(const Problem& problem, std::span<const int32_t> known_order) {
  Best best(lower_bound(problem));
  if (!known_order.empty() && best.offer(pack_in_order(problem, known_order))) return best.solution();
  for (const auto packer : kPackers) {
    if (best.offer(packer(problem))) return best.solution();
  }
  const auto buffers = static_cast<int64_t>(problem.buffers.size());
  const SearchBudget budget{.work = 100'000'000, .moves = 40 + buffers};
  for (uint64_t round = 1; round <= 2; ++round) {
    if (best.offer(search_skyline(problem, round, budget))) return best.solution();
    const double tolerance = round == 1 ? 0.01 : 0.04;
    if (best.offer(search_first_fit(problem, best.solution(), tolerance, round, budget))) return best.solution();
  }
  return best.solution();
}

}  // namespace

Solution pack(const Problem& problem, PackEffort effort, std::span<const int32_t> known_order) {
  check_problem(problem);
  return effort == PackEffort::kFast ? pack_fast(problem, known_order) : pack_thorough(problem, known_order);
}

}  // namespace lowtide
