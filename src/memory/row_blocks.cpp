#include "memory/row_blocks.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "kernels/kernel.h"
#include "schedule/live_bytes.h"
#include "schedule/timeline.h"

namespace lowtide {

namespace {

// Steps before and behind the one with the most bytes.
constexpr int32_t kReach = 24;
// Steps that need less of the most bytes are left as they are where savings are foreseen.
constexpr double kForeseenShare = 0.9;
// Steps of a run short enough that all of them are tried.
constexpr int32_t kShort = 8;

bool is_counted(const ProgramBuffer& buffer) {
  return buffer.kind == BufferKind::kArena || buffer.kind == BufferKind::kGradient;
}

class Chooser {
 public:
  Chooser(const PlanResult& plan, const Binding& binding, const DimValues& dims, const Prices& prices,
          int64_t most_rows = kMostBlockRows)
      : program_(plan.program),
        operands_(plan.operands),
        dims_(dims),
        prices_(prices),
        most_rows_(most_rows),
        finder_(program_, plan.operands, plan.buffer_numel),
        timeline_(bytes_by_step(program_, binding)),
        lives_(program_.buffers.size()),
        is_taken_(program_.steps.size()),
        lies_in_(program_.buffers.size()) {
    std::iota(lies_in_.begin(), lies_in_.end(), 0);
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
      const ProgramBuffer& buffer = program_.buffers[i];
      if (!is_counted(buffer)) continue;
      lives_[i] = {{buffer.first, buffer.last}, padded_bytes(binding.buffer_bytes[i])};
    }
  }

  std::vector<PricedRowBlocks> run() {
    while (timeline_.peak() > 0) {
      const int32_t most = timeline_.peak_position();
      if (is_taken_[static_cast<size_t>(most)]) break;
      const std::optional<Tried> best = try_around(most);
      if (!best) break;
      take(*best);
    }
    std::sort(chosen_.begin(), chosen_.end(),
              [](const PricedRowBlocks& a, const PricedRowBlocks& b) { return a.blocks.first < b.blocks.first; });
    return std::move(chosen_);
  }

  ForeseenBytes foresee() {
    ForeseenBytes bytes;
    const size_t steps = program_.steps.size();
    for (size_t i = 0; i < steps; ++i) bytes.without.push_back(timeline_.bytes_at(static_cast<int32_t>(i)));
    const auto least = static_cast<int64_t>(kForeseenShare * static_cast<double>(timeline_.peak()));
    std::vector<int64_t> left_out(steps, 0);
    while (timeline_.peak() > least) {
      const int32_t most = timeline_.peak_position();
      const bool is_taken = is_taken_[static_cast<size_t>(most)];
      if (const std::optional<Tried> best = is_taken ? std::nullopt : try_around(most)) {
        take(*best);
        continue;
      }
      // No run helps here: on to where the next most bytes are.
      left_out[static_cast<size_t>(most)] = timeline_.peak();
      timeline_.remove({most, most}, timeline_.peak());
    }
    for (size_t i = 0; i < steps; ++i) bytes.with.push_back(timeline_.bytes_at(static_cast<int32_t>(i)) + left_out[i]);
    return bytes;
  }

 private:
  struct Lived {
    Stretch at;
    int64_t bytes = 0;  // 0: not in the arena
  };
  struct Tried {
    RowBlocks blocks;
    RowLoop loop;
    int64_t peak_bytes = 0;  // within the run
  };
  using Changes = std::map<int32_t, Lived>;  // by buffer

  void take(const Tried& tried) {
    apply(changes(tried.blocks, tried.loop));
    for (int32_t i = tried.blocks.first; i < tried.blocks.end; ++i) is_taken_[static_cast<size_t>(i)] = true;
    for (const auto& [buffer, from] : tried.loop.takes) {
      const int32_t place = lies_in_[static_cast<size_t>(from)];
      std::replace(lies_in_.begin(), lies_in_.end(), lies_in_[static_cast<size_t>(buffer)], place);
    }
    chosen_.push_back({tried.blocks, milliseconds(tried.loop)});
  }

  // A quarter of the rows, but at least what sums go by, and no more than what makes a call cheap.
  int64_t block_rows(int64_t rows) const {
    return std::clamp(rows / 4 / kSumBlockRows * kSumBlockRows, kSumBlockRows, most_rows_);
  }

  // What the loop touches lives as long as it; what one block makes and uses up is small.
  Changes changes(const RowBlocks& blocks, const RowLoop& loop) const {
    Changes result;
    const int32_t last = blocks.end - 1;
    for (int32_t step = blocks.first; step < blocks.end; ++step)
      for (const auto& [touched, writes] : finder_.touches(step)) {
        const int32_t buffer = lies_in_[static_cast<size_t>(touched)];
        const Lived& life = lives_[static_cast<size_t>(buffer)];
        if (life.bytes > 0)
          result[buffer] = {{std::min(life.at.first, blocks.first), std::max(life.at.last, last)}, life.bytes};
      }
    for (const auto& [touched, from] : loop.takes) {
      const int32_t buffer = lies_in_[static_cast<size_t>(touched)], place = lies_in_[static_cast<size_t>(from)];
      Lived &life = result[buffer], &with = result[place];
      if (buffer == place || life.bytes == 0 || with.bytes == 0) continue;
      with.at = {std::min(with.at.first, life.at.first), std::max(with.at.last, life.at.last)};
      life.bytes = 0;
    }
    const int64_t rows = evaluate(blocks.rows, dims_);
    for (const auto& [buffer, width] : loop.inner) {
      const Lived& life = lives_[static_cast<size_t>(buffer)];
      if (life.bytes > 0)
        result[buffer] = {life.at, padded_bytes((life.bytes + rows - 1) / rows * std::min(rows, blocks.block_rows))};
    }
    return result;
  }

  // Afterwards `change` has what was.
  void apply(Changes change) {
    for (auto& [buffer, life] : change) {
      Lived& now = lives_[static_cast<size_t>(buffer)];
      timeline_.remove(now.at, now.bytes);
      timeline_.add(life.at, life.bytes);
      now = life;
    }
  }

  int64_t peak_with(const RowBlocks& blocks, const RowLoop& loop) {
    const Changes change = changes(blocks, loop);
    Changes before;
    for (const auto& [buffer, life] : change) before[buffer] = lives_[static_cast<size_t>(buffer)];
    apply(change);
    const int64_t peak = timeline_.peak_within({blocks.first, blocks.end - 1});
    apply(before);
    return peak;
  }

  bool can_stand_in(int32_t step, int32_t near, const Dim& rows) const {
    if (step < 0 || step >= timeline_.positions() || is_taken_[static_cast<size_t>(step)]) return false;
    if (finder_.is_backward(step) != finder_.is_backward(near)) return false;
    return program_.steps[static_cast<size_t>(step)].kind == StepKind::kEmit || finder_.row_step(step, rows);
  }

  std::optional<Tried> try_blocks(int32_t first, int32_t end, const Dim& rows) {
    const int64_t all = evaluate(rows, dims_);
    Tried tried{{first, end, rows, block_rows(all)}, {}, 0};
    std::optional<RowLoop> loop = finder_.find(first, end, rows);
    if (!loop || loop->inner.empty()) return std::nullopt;
    tried.blocks.block_rows = rows_of_block(tried.blocks.block_rows, evaluate(loop->batch_rows, dims_));
    if (tried.blocks.block_rows >= all) return std::nullopt;
    tried.loop = std::move(*loop);
    tried.peak_bytes = peak_with(tried.blocks, tried.loop);
    return tried;
  }

  // The best of all short runs around the step; of two as good, the shorter.
  std::optional<Tried> try_short(int32_t step, int32_t first, int32_t end, const Dim& rows) {
    std::optional<Tried> best;
    for (int32_t from = step; from >= first && step - from < kShort; --from)
      for (int32_t to = step + 1; to <= end && to - from <= kShort; ++to) {
        std::optional<Tried> tried = try_blocks(from, to, rows);
        if (tried && (!best || tried->peak_bytes < best->peak_bytes)) best = std::move(tried);
      }
    return best;
  }

  std::optional<Tried> try_around(int32_t step, const Dim& rows) {
    int32_t first = step, end = step + 1;
    while (first > step - kReach && can_stand_in(first - 1, step, rows)) --first;
    while (end < step + kReach && can_stand_in(end, step, rows)) ++end;
    std::optional<Tried> best = try_short(step, first, end, rows);
    std::optional<Tried> longest = move_ends(step, first, end, rows, end);
    if (best) best = move_ends(step, first, end, rows, best->blocks.end);
    return longest && (!best || longest->peak_bytes < best->peak_bytes) ? longest : best;
  }

  // From the best run that ends there, one end after the other is moved to where the fewest bytes are live; of two as
  // good, the shorter run.
  std::optional<Tried> move_ends(int32_t step, int32_t first, int32_t end, const Dim& rows, int32_t to) {
    std::optional<Tried> best;
    const auto offer = [&](int32_t from, int32_t until) {
      std::optional<Tried> tried = try_blocks(from, until, rows);
      if (tried && (!best || std::pair(tried->peak_bytes, until - from) <
                                 std::pair(best->peak_bytes, best->blocks.end - best->blocks.first)))
        best = std::move(tried);
    };
    for (; !best && to > step; --to)
      for (int32_t from = first; from <= step; ++from) offer(from, to);
    for (int64_t before = -1; best && best->peak_bytes != before;) {
      before = best->peak_bytes;
      const int32_t from = best->blocks.first;
      for (int32_t until = step + 1; until <= end; ++until) offer(from, until);
      const int32_t until = best->blocks.end;
      for (int32_t at = first; at <= step; ++at) offer(at, until);
    }
    return best;
  }

  std::optional<Tried> try_around(int32_t step) {
    std::optional<Tried> best;
    for (const Dim& rows : finder_.rows_at(step)) {
      if (evaluate(rows, dims_) < 2 * kSumBlockRows || !finder_.row_step(step, rows)) continue;
      std::optional<Tried> tried = try_around(step, rows);
      if (tried && (!best || tried->peak_bytes < best->peak_bytes)) best = std::move(tried);
    }
    if (best && best->peak_bytes >= timeline_.peak()) return std::nullopt;
    return best;
  }

  // Of each further block: a call of each step, which reads again what serves all rows.
  double milliseconds(const RowLoop& loop) const {
    double sum = 0;
    for (const auto& [index, rows] : loop.steps) {
      const ProgramStep& step = program_.steps[static_cast<size_t>(index)];
      CostAt cost;
      for (size_t i = 0; i < step.inputs.size(); ++i) {
        if (step.inputs[i] < 0 || rows.inputs[i].count > 0) continue;
        const PlacedOperand& operand = operands_[static_cast<size_t>(step.inputs[i])];
        cost.bytes += static_cast<double>(evaluate(numel(operand.sizes), dims_) * size_bytes(operand.dtype));
      }
      const DType dtype = operands_[static_cast<size_t>(step.outputs[0])].dtype;
      sum += prices_.milliseconds(info(find_kernel(step.kernel)->op).kernels, dtype, cost);
    }
    return sum;
  }

  const Program& program_;
  const std::span<const PlacedOperand> operands_;
  const DimValues& dims_;
  const Prices& prices_;
  const int64_t most_rows_;
  const RowLoopFinder finder_;
  Timeline timeline_;
  std::vector<Lived> lives_;  // by buffer
  std::vector<bool> is_taken_;
  std::vector<int32_t> lies_in_;  // by buffer, itself or the one whose bytes it takes in a run
  std::vector<PricedRowBlocks> chosen_;
};

}  // namespace

Timeline bytes_by_step(const Program& program, const Binding& binding) {
  Timeline timeline(static_cast<int32_t>(program.steps.size()));
  for (size_t i = 0; i < program.buffers.size(); ++i)
    if (const ProgramBuffer& buffer = program.buffers[i]; is_counted(buffer))
      timeline.add({buffer.first, buffer.last}, padded_bytes(binding.buffer_bytes[i]));
  for (int32_t i = 0; i < timeline.positions(); ++i)
    timeline.add({i, i}, binding.steps[static_cast<size_t>(i)].least_scratch_bytes);
  return timeline;
}

double extra_milliseconds(std::span<const PricedRowBlocks> runs, const DimValues& dims) {
  double sum = 0;
  for (const auto& [blocks, milliseconds] : runs) {
    const int64_t rows = evaluate(blocks.rows, dims);
    sum += milliseconds * static_cast<double>(std::max<int64_t>(rows - 1, 0) / blocks.block_rows);
  }
  return sum;
}

std::vector<RowBlocks> without_prices(std::span<const PricedRowBlocks> runs) {
  std::vector<RowBlocks> result;
  for (const PricedRowBlocks& run : runs) result.push_back(run.blocks);
  return result;
}

std::vector<PricedRowBlocks> choose_row_blocks(const PlanResult& plan, const Binding& binding, const DimValues& dims,
                                               const Prices& prices, int64_t most_rows) {
  return Chooser(plan, binding, dims, prices, most_rows).run();
}

ForeseenBytes foresee_row_blocks(const PlanResult& plan, const Binding& binding, const DimValues& dims,
                                 const Prices& prices) {
  return Chooser(plan, binding, dims, prices).foresee();
}

}  // namespace lowtide
