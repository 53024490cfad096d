#include "emit/row_loop.h"

#include <algorithm>

namespace lowtide {

// How the steps of a run use a buffer.
struct RowLoopFinder::Use {
  int32_t buffer = 0;
  std::optional<Dim> stride;  // from row to row
  bool is_read_whole = false;
  bool is_written = false;
  bool is_sum = false;
  bool starts_written = false;  // the first step that touches it only writes it
  bool has_rows_apart = true;   // every row has elements of its own, evenly spaced
  int steps = 0;
  int32_t first_step = -1, last_step = -1;
  DType dtype = DType::kF32;
};

RowLoopFinder::RowLoopFinder(const Program& program, std::span<const PlacedOperand> operands,
                             std::span<const Dim> buffer_numel)
    : program_(program),
      operands_(operands),
      buffer_numel_(buffer_numel),
      steps_of_(program.buffers.size()),
      is_updated_(program.buffers.size()) {
  for (int32_t i = 0; i < static_cast<int32_t>(program.steps.size()); ++i)
    for (const auto& [buffer, writes] : touches(i)) {
      std::vector<int32_t>& steps = steps_of_[static_cast<size_t>(buffer)];
      if (steps.empty() || steps.back() != i) steps.push_back(i);
    }
  for (const ProgramUpdate& update : program.updates)
    is_updated_[static_cast<size_t>(operands[static_cast<size_t>(update.operand)].storage.buffer)] = true;
}

std::vector<std::pair<int32_t, bool>> RowLoopFinder::touches(int32_t step) const {
  std::vector<std::pair<int32_t, bool>> result;
  const ProgramStep& at = program_.steps[static_cast<size_t>(step)];
  for (int32_t id : at.inputs)
    if (id >= 0) result.emplace_back(operands_[static_cast<size_t>(id)].storage.buffer, false);
  for (int32_t id : at.outputs)
    if (id >= 0) result.emplace_back(operands_[static_cast<size_t>(id)].storage.buffer, true);
  return result;
}

std::vector<Dim> RowLoopFinder::rows_at(int32_t step) const {
  std::vector<Dim> result;
  const ProgramStep& at = program_.steps[static_cast<size_t>(step)];
  for (const std::vector<int32_t>* ids : {&at.outputs, &at.inputs})
    for (int32_t id : *ids) {
      if (id < 0) continue;
      Dim product = 1;
      const Shape& sizes = operands_[static_cast<size_t>(id)].sizes;
      for (size_t i = 0; i + 1 < sizes.size(); ++i) {
        product = product * sizes[i];
        if (std::find(result.begin(), result.end(), product) == result.end()) result.push_back(product);
      }
    }
  return result;
}

const std::optional<RowStep>& RowLoopFinder::row_step(int32_t step, const Dim& rows) const {
  auto& known = known_[rows];
  known.resize(program_.steps.size());
  std::optional<std::optional<RowStep>>& found = known[static_cast<size_t>(step)];
  if (!found) found = lowtide::row_step(program_, operands_, program_.steps[static_cast<size_t>(step)], rows);
  return *found;
}

bool RowLoopFinder::may_run_behind(int32_t step) const {
  const StepKind kind = program_.steps[static_cast<size_t>(step)].kind;
  return kind == StepKind::kEmit || kind == StepKind::kKernel;
}

bool RowLoopFinder::is_backward(int32_t step) const { return step >= program_.regions[0].end; }

// Whether an operand with rows keeps to its own part of each row, or of each batch.
static bool keeps_to_its_rows(const PlacedOperand& operand, RowDims dims, const Dim& stride) {
  Dim last = operand.storage.offset;
  for (int i = 0; i < static_cast<int>(operand.sizes.size()); ++i)
    if (i < dims.first || i >= dims.first + dims.count)
      last = last + (operand.sizes[static_cast<size_t>(i)] - 1) * operand.storage.strides[static_cast<size_t>(i)];
  const Dim room = stride - 1 - last;
  return room.is_constant() && room.constant() >= 0;
}

bool RowLoopFinder::note(int32_t index, const RowStep& rows, std::vector<Use>& uses) const {
  const ProgramStep& step = program_.steps[static_cast<size_t>(index)];
  const auto use_of = [&](int32_t buffer) -> Use& {
    for (Use& use : uses)
      if (use.buffer == buffer) return use;
    uses.push_back({});
    uses.back().buffer = buffer;
    return uses.back();
  };
  std::vector<int32_t> seen;
  const auto note_all = [&](const std::vector<int32_t>& ids, const std::vector<RowDims>& dims, bool writes) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0) continue;
      const PlacedOperand& operand = operands_[static_cast<size_t>(ids[i])];
      Use& use = use_of(operand.storage.buffer);
      if (std::find(seen.begin(), seen.end(), use.buffer) == seen.end()) {
        seen.push_back(use.buffer);
        if (use.steps++ == 0) {
          use.starts_written = writes;
          use.first_step = index;
          use.dtype = operand.dtype;
        }
        use.last_step = index;
      }
      use.is_written = use.is_written || writes;
      if (dims[i].count == 0) {
        (writes ? use.is_sum : use.is_read_whole) = true;
        continue;
      }
      const std::optional<Dim> apart = row_stride(operand, dims[i]);
      if (!apart) return false;
      const Dim stride = dims[i].rows_each.is(1) ? *apart : floordiv(*apart, dims[i].rows_each);
      if (!(stride * dims[i].rows_each == *apart)) {
        if (writes) return false;
        use.is_read_whole = true;
        continue;
      }
      use.has_rows_apart =
          use.has_rows_apart && (!use.stride || *use.stride == stride) && keeps_to_its_rows(operand, dims[i], *apart);
      use.stride = stride;
    }
    return true;
  };
  return note_all(step.inputs, rows.inputs, false) && note_all(step.outputs, rows.outputs, true);
}

// Whether `use` may begin in the bytes of `from`, of which the loop's steps, and they alone from the first on, are the
// last to know.
bool RowLoopFinder::may_take(const Use& use, const Use& from, const std::vector<bool>& in_loop, int32_t first) const {
  const auto lies_by_rows = [&](const Use& each) {
    const size_t at = static_cast<size_t>(each.buffer);
    const auto begins = [&](int32_t step) {  // a call that may be at work on it until another step
      return program_.steps[static_cast<size_t>(step)].kind == StepKind::kBegin;
    };
    return std::none_of(steps_of_[at].begin(), steps_of_[at].end(), begins) &&
           program_.buffers[at].kind == BufferKind::kArena && !is_updated_[at] && each.stride && each.has_rows_apart &&
           !each.is_sum && !each.is_read_whole;
  };
  const size_t buffer = static_cast<size_t>(use.buffer), other = static_cast<size_t>(from.buffer);
  const std::vector<int32_t>&steps = steps_of_[buffer], &others = steps_of_[other];
  const auto is_here = [&](int32_t step) {
    return step < first ||
           (step < first + static_cast<int32_t>(in_loop.size()) && in_loop[static_cast<size_t>(step - first)]);
  };
  return lies_by_rows(use) && lies_by_rows(from) && use.starts_written && steps.front() == use.first_step &&
         from.last_step < use.first_step && std::all_of(others.begin(), others.end(), is_here) &&
         use.dtype == from.dtype && *use.stride == *from.stride && buffer_numel_[buffer] == buffer_numel_[other] &&
         program_.buffers[buffer].device == program_.buffers[other].device;
}

std::optional<RowLoop> RowLoopFinder::find(int32_t first, int32_t end, const Dim& rows) const {
  RowLoop loop;
  if (is_backward(first) != is_backward(end - 1)) return std::nullopt;
  std::vector<Use> uses;
  for (int32_t i = first; i < end; ++i) {
    const std::optional<RowStep>& step = row_step(i, rows);
    if (step && !step->batch_rows.is(1)) {
      if (!loop.batch_rows.is(1) && !(loop.batch_rows == step->batch_rows)) return std::nullopt;
      loop.batch_rows = step->batch_rows;
    }
    if (step && note(i, *step, uses)) {
      loop.steps.emplace_back(i, *step);
    } else if (may_run_behind(i) && i != first && i + 1 != end) {
      loop.behind.push_back(i);
    } else {
      return std::nullopt;
    }
  }
  const auto in_loop = [&](int32_t step) {
    return std::any_of(loop.steps.begin(), loop.steps.end(), [&](const auto& each) { return each.first == step; });
  };
  // Steps in the loop that stand behind one that leaves it neither need what it makes nor change what it reads.
  for (int32_t behind : loop.behind)
    for (const auto& [step, form] : loop.steps)
      for (const auto& [buffer, writes] : touches(step))
        for (const auto& [other, other_writes] : touches(behind))
          if (step > behind && buffer == other && (writes || other_writes)) return std::nullopt;
  for (const Use& use : uses) {
    const size_t at = static_cast<size_t>(use.buffer);
    const ProgramBuffer& buffer = program_.buffers[at];
    if (!use.is_written) continue;
    if (use.is_sum) {
      if (use.steps > 1 || use.stride || use.is_read_whole) return std::nullopt;
      continue;
    }
    if (use.is_read_whole || !use.stride || !use.has_rows_apart) return std::nullopt;
    const bool only_here = std::all_of(steps_of_[at].begin(), steps_of_[at].end(), in_loop);
    if (buffer.kind == BufferKind::kArena && only_here && use.starts_written && !is_updated_[at] &&
        buffer_numel_[at] == rows * *use.stride)
      loop.inner.emplace_back(use.buffer, *use.stride);
  }
  const auto is_inner = [&](const Use& use) {
    return std::any_of(loop.inner.begin(), loop.inner.end(),
                       [&](const auto& each) { return each.first == use.buffer; });
  };
  std::vector<bool> loops(static_cast<size_t>(end - first));
  for (const auto& [step, form] : loop.steps) loops[static_cast<size_t>(step - first)] = true;
  std::vector<bool> is_taken(uses.size());
  for (const Use& use : uses)
    for (size_t i = 0; i < uses.size(); ++i) {
      if (is_taken[i] || is_inner(use) || is_inner(uses[i]) || !may_take(use, uses[i], loops, first)) continue;
      is_taken[i] = true;
      loop.takes.emplace_back(use.buffer, uses[i].buffer);
      break;
    }
  return loop;
}

}  // namespace lowtide
