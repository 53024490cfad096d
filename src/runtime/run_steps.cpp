// How an Executor runs the steps of one region.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/check.h"
#include "bind/run_symbols.h"
#include "runtime/block_pool.h"
#include "runtime/executor.h"
#include "runtime/unplanned_size.h"

namespace lowtide {

KernelStatus Executor::run_step(RunState& state, const RunView& run, int32_t index) {
  Binding& binding = *state.binding_;
  const ProgramStep& step = program_.steps[static_cast<size_t>(index)];
  const BoundStep& bound = binding.steps[static_cast<size_t>(index)];
  KernelCall call = step_call(binding, bound);
  switch (step.kind) {
    case StepKind::kKernel: {
      if (step.index >= 0 && state.left_out_[static_cast<size_t>(step.index)]) return nullptr;
      call.random_key = state.random_key_;
      call.scratch_bytes = bound.scratch_bytes;
      if (bound.scratch_bytes > 0) {
        const int64_t offset = state.packing_->scratch_offsets[static_cast<size_t>(index)];
        call.scratch = bound.device == 0 ? host_place(state, offset)
                                         : state.device_arenas_[static_cast<size_t>(bound.device) - 1].get() + offset;
      }
      return bound.kernel->run(call);
    }
    case StepKind::kHostCall: {
      if (step.target.empty()) {
        if (!handler_.backward) return "no call handler is installed";
        CallContext context = std::move(state.contexts_[static_cast<size_t>(step.index)]);
        return handler_.backward({std::move(context), call.inputs.subspan(0, bound.grads), call.outputs});
      }
      if (!handler_.forward) return "no call handler is installed";
      CallContext context;
      const KernelStatus status = handler_.forward(
          {&step.target, &bound.attrs, call.inputs, call.outputs, step.index >= 0, step.needs_grad}, &context);
      if (step.index >= 0) state.contexts_[static_cast<size_t>(step.index)] = std::move(context);
      return status;
    }
    case StepKind::kBegin:
      if (!handler_.begin) return "no call handler is installed";
      return handler_.begin({&step.target, &bound.attrs, call.inputs, call.outputs},
                            &state.pending_[static_cast<size_t>(index)]);
    case StepKind::kWait: {
      const PendingCall pending = std::exchange(state.pending_[static_cast<size_t>(step.index)], nullptr);
      return pending ? pending() : nullptr;
    }
    case StepKind::kLoop: return run_loop(state, run, static_cast<size_t>(step.index));
    case StepKind::kInspect: inspect(state, bound, call.inputs[0]); return nullptr;
    case StepKind::kEmit:
    case StepKind::kBind: return nullptr;
  }
  return "a step of no known kind";
}

KernelStatus Executor::run_loop(RunState& state, const RunView& run, size_t number) {
  const ProgramLoop& loop = program_.loops[number];
  Binding& binding = *state.binding_;
  const SymbolUse& use = binding.symbol_uses[program_.step_symbols.size() + number];
  const auto value = [&](ExpressionId id) { return binding.values[static_cast<size_t>(id)]; };
  const int64_t rows = value(loop.rows), each = block_rows(loop, value);
  for (int64_t first = 0; first < rows; first += each) {
    const int64_t block[2] = {first, std::min(each, rows - first)};
    if (const KernelStatus status =
            set_symbols(program_, binding, use, loop_symbol(program_, number), block, state.bases_))
      return status;
    run_steps(state, run, loop.first, loop.end);
  }
  return nullptr;
}

KernelStatus Executor::read_size(RunState& state, size_t symbol) {
  const StepSymbol& written = program_.step_symbols[symbol];
  Binding& binding = *state.binding_;
  const ProgramOperand& operand = program_.operands[static_cast<size_t>(written.operand)];
  const char* at = state.bases_[static_cast<size_t>(operand.buffer)] +
                   binding.values[static_cast<size_t>(operand.offset)] * size_bytes(operand.dtype);
  int64_t value = 0;
  std::memcpy(&value, at, sizeof value);
  if (value < written.low || value > binding.most[symbol])
    return "it found a size outside of the range that is planned";
  state.step_sizes_[symbol] = value;
  return set_symbols(program_, binding, binding.symbol_uses[symbol], program_.symbols.size() + symbol, {&value, 1},
                     state.bases_);
}

void Executor::set_sizes(RunState& state, const ProgramRegion& region) {
  Binding& binding = *state.binding_;
  bool changes = false;
  for (size_t i = 0; i < program_.step_symbols.size(); ++i) {
    int64_t& size = binding.all_symbols[program_.symbols.size() + i];
    if (program_.step_symbols[i].step >= region.first || size == state.step_sizes_[i]) continue;
    size = state.step_sizes_[i];
    changes = true;
  }
  for (size_t i = 0; changes && i < program_.step_symbols.size(); ++i) {  // what depends on several: with the last one
    if (program_.step_symbols[i].step >= region.first) continue;
    const KernelStatus status = set_symbols(program_, binding, binding.symbol_uses[i], program_.symbols.size() + i,
                                            {&state.step_sizes_[i], 1}, state.bases_);
    LT_CHECK(status == nullptr, "a size that was right before: ", status);
  }
}

void Executor::inspect(const RunState& state, const BoundStep& step, const TensorRef& tensor) {
  // An incoming gradient that the caller did not send has no bytes.
  const int32_t buffer = state.binding_->ref_buffers[static_cast<size_t>(step.first)];
  if (const ProgramBuffer& read = program_.buffers[static_cast<size_t>(buffer)];
      read.kind == BufferKind::kCaller && read.source < 0 && state.left_out_[static_cast<size_t>(-1 - read.source)])
    return;
  const Inspection& asked = step.inspection;
  if (asked.sources != nullptr) {
    const bool is_reached = std::any_of(asked.sources->begin(), asked.sources->end(), [&](int64_t source) {
      return source < 0 || static_cast<size_t>(source) >= state.absent_.size() ||
             !state.absent_[static_cast<size_t>(source)];
    });
    if (!is_reached) return;
  }
  const Statistics found = statistics(tensor);
  for (size_t i = 0; i < asked.records->size(); ++i)
    inspected_.push_back({(*asked.records)[i], (*asked.places)[i], found});
}

// Ctrl-C, or another thread: nothing of the step has run.
static void poll_stop(const ProgramStep& step, int32_t index) {
  if (stop_flag().exchange(false))
    LT_USER_FAIL(ErrorKind::kInterrupted, "interrupted at step ", index, ", ", step.node);
}

void Executor::run_steps(RunState& state, const RunView& run, int32_t first, int32_t end) {
  for (int32_t i = first; i < end; ++i) {
    const ProgramStep& step = program_.steps[static_cast<size_t>(i)];
    poll_stop(step, i);
    for (const StepHooks& hooks : hooks_)
      if (hooks.before) hooks.before(run, i);
    const KernelStatus status = run_step(state, run, i);
    LT_USER_CHECK(ErrorKind::kRuntime, status == nullptr, step.node, ": ", status);
    if (const int32_t symbol = run.binding.steps[static_cast<size_t>(i)].symbol; symbol >= 0)
      if (const KernelStatus refusal = read_size(state, static_cast<size_t>(symbol)))
        throw UnplannedSize(concat(step.node, ": ", refusal));
    for (size_t h = hooks_.size(); h-- > 0;)
      if (hooks_[h].after) hooks_[h].after(run, i);
    if (step.kind == StepKind::kLoop) i = program_.loops[static_cast<size_t>(step.index)].end - 1;
  }
}

void Executor::run_region(RunState& state) {
  if (state.packing_->placement.in_two && state.began_backward_) {
    take_gradient_blocks(state, state.next_region_);
    set_bases(state);
  }
  const size_t number = std::exchange(state.next_region_, program_.regions.size());  // one that fails is the last
  const ProgramRegion& region = program_.regions[number];
  char* const above = state.passing_ ? state.passing_->data : nullptr;
  const RunView run{program_, *state.binding_, *state.packing_, state.arena_->data,
                    above,    state.bases_,    state.owners_,   static_cast<int32_t>(number)};
  for (const StepHooks& hooks : hooks_)
    if (hooks.begin) hooks.begin(run);
  set_sizes(state, region);
  state.binding_->relocations[number].apply(*state.binding_, state.bases_);
  const auto loop_begin = std::chrono::steady_clock::now();
  try {
    run_steps(state, run, region.first, region.end);
  } catch (...) {
    state.wait_for_all();  // the caller's tensors may go now
    throw;
  }
  for (size_t h = hooks_.size(); h-- > 0;)
    if (hooks_[h].end) hooks_[h].end(run);
  state.next_region_ = number + 1;
  last_steps_ns_ +=
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - loop_begin).count();
}

}  // namespace lowtide
