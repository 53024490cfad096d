// A run of steps as a loop over blocks of rows, in which what only the run makes and reads is as large as one block.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "emit/row_work.h"

namespace lowtide {

// What a plan is asked for: steps [first, end) of the plan without loops.
struct RowBlocks {
  int32_t first = 0;
  int32_t end = 0;
  Dim rows;
  int64_t block_rows = 0;  // a multiple of kSumBlockRows; of whole batches so many or more
};

struct RowLoop {
  std::vector<std::pair<int32_t, RowStep>> steps;  // in the loop
  std::vector<int32_t> behind;                     // of the run, but have nothing to do with rows: they run after it
  std::vector<std::pair<int32_t, Dim>> inner;      // buffers that shrink to a block, each with the elements of a row
  // Buffers that the loop begins to fill, each with one that it reads to its end: a block's rows are read before they
  // are written, so that both may be one.
  std::vector<std::pair<int32_t, int32_t>> takes;
  Dim batch_rows = 1;  // blocks are whole batches of so many rows
};

class RowLoopFinder {
 public:
  RowLoopFinder(const Program& program, std::span<const PlacedOperand> operands, std::span<const Dim> buffer_numel);

  // What the rows of a run with this step could be.
  std::vector<Dim> rows_at(int32_t step) const;
  const std::optional<RowStep>& row_step(int32_t step, const Dim& rows) const;
  // Whether the step may run after a loop that stands around it, as far as the step alone tells.
  bool may_run_behind(int32_t step) const;
  // A loop may stand where the plan without loops has cut backward, not across the end of forward.
  bool is_backward(int32_t step) const;
  // Nothing where blocks would change what the steps compute.
  std::optional<RowLoop> find(int32_t first, int32_t end, const Dim& rows) const;

  // The buffers that a step touches, and whether it writes them.
  std::vector<std::pair<int32_t, bool>> touches(int32_t step) const;

 private:
  struct Use;
  bool note(int32_t index, const RowStep& rows, std::vector<Use>& uses) const;
  bool may_take(const Use& use, const Use& from, const std::vector<bool>& in_loop, int32_t first) const;

  const Program& program_;
  const std::span<const PlacedOperand> operands_;
  const std::span<const Dim> buffer_numel_;
  std::vector<std::vector<int32_t>> steps_of_;  // by buffer
  std::vector<bool> is_updated_;                // by buffer: forward's result is written back from it
  // By rows, what was found of steps: runs that overlap are tried one after another.
  mutable std::map<Dim, std::vector<std::optional<std::optional<RowStep>>>> known_;
};

}  // namespace lowtide
