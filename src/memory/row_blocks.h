// Row blocks: runs of steps that work on rows go by blocks of them, so that what only the run makes and reads takes the
// bytes of one block. No node runs again, and bits stay the same: what a run costs is more calls, and reading once a
// block what serves all rows (weights).
#pragma once

#include <span>
#include <vector>

#include "bind/binding.h"
#include "emit/plan.h"
#include "memory/prices.h"
#include "schedule/timeline.h"

namespace lowtide {

struct PricedRowBlocks {
  RowBlocks blocks;
  double milliseconds = 0;  // that each block takes, behind the first
};

// That the blocks take at these sizes beyond the runs as a whole.
double extra_milliseconds(std::span<const PricedRowBlocks> runs, const DimValues& dims);

std::vector<RowBlocks> without_prices(std::span<const PricedRowBlocks> runs);

// By step, the bytes that are live while it runs: of the arena, of gradients and of the least scratch.
Timeline bytes_by_step(const Program& program, const Binding& binding);

// Blocks of at most so many rows, but at least what sums go by.
constexpr int64_t kMostBlockRows = 1024;

// Runs that lower the most bytes that are live, at the sizes of the binding: the run around the step where most are,
// then around the step where most are now, until none helps there. `plan` has no loops; `binding`: of its program.
std::vector<PricedRowBlocks> choose_row_blocks(const PlanResult& plan, const Binding& binding, const DimValues& dims,
                                               const Prices& prices, int64_t most_rows = kMostBlockRows);

// By step, the bytes that are live without runs, and with them if each step where many are live had the run that is
// best for it: what a search for values to keep may count on beforehand.
struct ForeseenBytes {
  std::vector<int64_t> without, with;
};
ForeseenBytes foresee_row_blocks(const PlanResult& plan, const Binding& binding, const DimValues& dims,
                                 const Prices& prices);

}  // namespace lowtide
