// Emitter: runs of steps become loops over blocks of rows.
//
//   step loop                     the block's first row and its rows are symbols
//   t = f(x[rows])                t is as large as a block: its part of x, of t all
//   y[rows] = g(t)
//   s = sum of t's rows onto s    s was set to 0 before the loop
#include <algorithm>

#include "base/check.h"
#include "emit/emitter.h"

namespace lowtide {

namespace {

// The kernel that adds to a sum over rows what a block of them gives, in place of the one that makes the sum of all.
void add_onto(ProgramStep& step) {
  const Kernel& kernel = *find_kernel(step.kernel);
  step.inputs.resize(2, -1);
  step.inputs.push_back(step.outputs[0]);
  if (kernel.row_work == RowWork::kSums) {
    step.kernel = "cpu.ReduceSum.onto";
    step.inputs.erase(step.inputs.begin() + 1);
    return;
  }
  step.kernel = "cpu.Gemm";
  for (const char* name : {"transA", "transB"})
    if (!step.attrs.has(name)) step.attrs.set(name, false);
  if (!step.attrs.has("alpha")) step.attrs.set("alpha", 1.0);
  step.attrs.set("beta", 1.0);
}

}  // namespace

void Emitter::make_loops() {
  if (options_.row_blocks.empty()) return;
  std::vector<RowLoop> loops;
  {
    const RowLoopFinder finder(program_, operands_, buffer_numel_);
    int32_t at = 0;
    for (const RowBlocks& blocks : options_.row_blocks) {
      std::optional<RowLoop> loop;
      const int32_t steps = static_cast<int32_t>(program_.steps.size());
      if (blocks.first >= at && blocks.first < blocks.end && blocks.end <= steps && blocks.block_rows > 0 &&
          blocks.block_rows % kSumBlockRows == 0)
        loop = finder.find(blocks.first, blocks.end, blocks.rows);
      LT_USER_CHECK(ErrorKind::kInvalidGraph, loop.has_value(), "steps ", blocks.first, " to ", blocks.end,
                    " cannot go by blocks of ", blocks.block_rows, " of ", blocks.rows, " rows");
      loops.push_back(std::move(*loop));
      at = blocks.end;
    }
  }
  take_places(loops);
  const std::vector<ProgramStep> steps = std::exchange(program_.steps, {});
  const std::vector<int32_t> positions = std::exchange(step_positions_, {});
  std::vector<int32_t> moved_to;  // by step; and where all end
  size_t next = 0;
  const auto take = [&](int32_t step, ProgramStep as) {
    if (as.kind == StepKind::kWait) as.index = moved_to[static_cast<size_t>(as.index)];
    program_.steps.push_back(std::move(as));
    step_positions_.resize(program_.steps.size(), positions[static_cast<size_t>(step)]);
  };
  for (int32_t i = 0; i < static_cast<int32_t>(steps.size()); ++i) {
    moved_to.push_back(static_cast<int32_t>(program_.steps.size()));
    if (next == loops.size() || i < options_.row_blocks[next].first) {
      take(i, steps[static_cast<size_t>(i)]);
    } else if (i == options_.row_blocks[next].first) {
      emit_loop(options_.row_blocks[next], loops[next], steps, positions);
      for (int32_t behind : loops[next].behind) take(behind, steps[static_cast<size_t>(behind)]);
    }
    if (next < loops.size() && i + 1 == options_.row_blocks[next].end) ++next;
  }
  moved_to.push_back(static_cast<int32_t>(program_.steps.size()));
  for (StepSymbol& symbol : program_.step_symbols) symbol.step = moved_to[static_cast<size_t>(symbol.step)];
  for (ProgramRegion& region : program_.regions) {
    region.first = moved_to[static_cast<size_t>(region.first)];
    region.end = moved_to[static_cast<size_t>(region.end)];
  }
}

// What a loop fills row by row lies where it has read the same rows.
void Emitter::take_places(const std::vector<RowLoop>& loops) {
  std::map<int32_t, int32_t> lies_in;
  const auto place_of = [&](int32_t buffer) {
    const auto found = lies_in.find(buffer);
    return found == lies_in.end() ? buffer : found->second;
  };
  for (const RowLoop& loop : loops)
    for (const auto& [buffer, from] : loop.takes) {
      lies_in[buffer] = place_of(from);
      buffer_numel_[static_cast<size_t>(buffer)] = 0;
      program_.buffers[static_cast<size_t>(buffer)].size_bytes = expression(0);
    }
  if (lies_in.empty()) return;
  for (size_t i = 0; i < operands_.size(); ++i) {
    Storage storage = operands_[i].storage;
    storage.buffer = place_of(storage.buffer);
    if (storage.buffer == operands_[i].storage.buffer) continue;
    place_operand(static_cast<int32_t>(i), {operands_[i].dtype, operands_[i].sizes}, storage);
  }
  for (std::optional<Storage>& place : places_)
    if (place) place->buffer = place_of(place->buffer);
}

void Emitter::emit_loop(const RowBlocks& blocks, const RowLoop& loop, const std::vector<ProgramStep>& steps,
                        const std::vector<int32_t>& positions) {
  const std::string name = concat("loop ", program_.loops.size());
  const Dim first = Dim::symbol(name + ": first row"), count = Dim::symbol(name + ": rows");
  for (const Dim& symbol : {first, count}) symbols_.push_back(to_string(symbol));
  for (const auto& [step, rows] : loop.steps)
    if (rows.adds_up) emit_zeros(steps[static_cast<size_t>(step)], blocks.rows);

  const std::string& node = steps[static_cast<size_t>(blocks.first)].node;
  ProgramStep own;
  own.kind = StepKind::kLoop;
  own.index = static_cast<int32_t>(program_.loops.size());
  own.node = concat("blocks of ", blocks.block_rows, " rows, from ", node);
  program_.steps.push_back(std::move(own));
  const int32_t begin = static_cast<int32_t>(program_.steps.size());
  step_positions_.resize(program_.steps.size(), positions[static_cast<size_t>(blocks.first)]);
  const bool has_batches = !loop.batch_rows.is(1);
  program_.loops.push_back({begin, begin, expression(blocks.rows), blocks.block_rows,
                            has_batches ? expression(loop.batch_rows) : ExpressionId(-1)});

  const auto is_inner = [&](int32_t buffer) {
    return std::any_of(loop.inner.begin(), loop.inner.end(), [&](const auto& each) { return each.first == buffer; });
  };
  const auto batches = [&](const Dim& rows, const Dim& each) {
    return each.is(1) ? rows : floordiv(rows, max(each, 1));
  };
  // No two steps share an operand.
  const auto put_in_block = [&](int32_t id, RowDims dims) {
    if (id < 0 || dims.count == 0) return;
    PlacedOperand operand = operands_[static_cast<size_t>(id)];
    const Dim stride = *row_stride(operand, dims);
    bool has_rows = false;
    for (int i = dims.first + dims.count; i-- > dims.first;) {
      Dim &size = operand.sizes[static_cast<size_t>(i)], &here = operand.storage.strides[static_cast<size_t>(i)];
      if (size.is(1)) continue;
      size = has_rows ? Dim(1) : batches(count, dims.rows_each);
      here = stride;
      has_rows = true;
    }
    if (!is_inner(operand.storage.buffer))
      operand.storage.offset = operand.storage.offset + batches(first, dims.rows_each) * stride;
    place_operand(id, {operand.dtype, operand.sizes}, operand.storage);
  };
  for (const auto& [index, rows] : loop.steps) {
    ProgramStep step = steps[static_cast<size_t>(index)];
    for (size_t i = 0; i < step.inputs.size(); ++i) put_in_block(step.inputs[i], rows.inputs[i]);
    for (size_t i = 0; i < step.outputs.size(); ++i) put_in_block(step.outputs[i], rows.outputs[i]);
    if (rows.adds_up) add_onto(step);
    if (!rows.drawn.is(0)) step.attrs.set("first_element", int64_t{expression(first * rows.drawn)});
    program_.steps.push_back(std::move(step));
    step_positions_.push_back(positions[static_cast<size_t>(index)]);
  }
  program_.loops.back().end = static_cast<int32_t>(program_.steps.size());
  for (const auto& [buffer, width] : loop.inner) {
    ProgramBuffer& shrunk = program_.buffers[static_cast<size_t>(buffer)];
    const auto element = std::find_if(operands_.begin(), operands_.end(),
                                      [&, id = buffer](const auto& each) { return each.storage.buffer == id; });
    buffer_numel_[static_cast<size_t>(buffer)] = count * width;
    shrunk.size_bytes = expression(count * width * size_bytes(element->dtype));
  }
}

// What the blocks of rows add to. A sum of products starts as its first block does: from -0, to which anything adds
// without a changed bit; without any rows it is 0, as all sums of nothing. Others start from 0.
void Emitter::emit_zeros(const ProgramStep& sum, const Dim& rows) {
  const PlacedOperand to = operands_[static_cast<size_t>(sum.outputs[0])];
  const bool of_products = find_kernel(sum.kernel)->row_work == RowWork::kProducts;
  if (zeros_buffer_ < 0) {
    std::string& bytes = program_.constants;
    bytes.resize((bytes.size() + 63) / 64 * 64, '\0');
    zeros_buffer_ = add_buffer(BufferKind::kConstant, "zeros", 2, DType::kF32, static_cast<int64_t>(bytes.size()));
    for (float zero : {0.0f, -0.0f}) bytes.append(reinterpret_cast<const char*>(&zero), sizeof zero);
  }
  Storage zero;
  zero.buffer = zeros_buffer_;
  zero.offset = of_products ? min(rows, 1) : Dim(0);
  zero.strides.assign(to.sizes.size(), Dim(0));
  emit_copy_step({to.dtype, to.sizes}, zero, to.storage, "the sums of " + sum.node);
}

}  // namespace lowtide
