#include "runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/size_code.h"
#include "bind/run_symbols.h"
#include "runtime/block_pool.h"
#include "runtime/callers_tensors.h"
#include "runtime/guard.h"
#include "runtime/largest_values.h"
#include "runtime/step_blocks.h"
#include "runtime/trace.h"

namespace lowtide {

RunState::RunState() { process_pool().forward_begins(); }
RunState::~RunState() {
  wait_for_all();
  process_pool().forward_is_gone();
}

void RunState::wait_for_all() {
  for (PendingCall& pending : pending_)
    if (pending) std::exchange(pending, nullptr)();
}

std::atomic<bool>& stop_flag() {
  static std::atomic<bool> flag{false};
  return flag;
}

Executor::Executor(Program program, ExecutorOptions options)
    : program_(std::move(program)), options_(std::move(options)) {
  check(program_);
  records_ = count_records(program_);
  output_places_.assign(program_.buffers.size(), -1);
  for (size_t i = 0; i < program_.buffers.size(); ++i) {
    const ProgramBuffer& buffer = program_.buffers[i];
    if (buffer.kind == BufferKind::kCaller)
      caller_buffers_.push_back(
          {i, buffer.source, buffer.source >= 0 && program_.inputs[static_cast<size_t>(buffer.source)].saved});
    if (buffer.kind == BufferKind::kConstant) constant_buffers_.push_back(i);
    if (buffer.kind != BufferKind::kOutput) continue;
    output_places_[i] = static_cast<int32_t>(output_buffers_.size());
    output_buffers_.push_back(i);
  }
  for (size_t i = 0; i < program_.inputs.size(); ++i)
    if (program_.inputs[i].saved) saved_inputs_.push_back(i);
  all_gradients_.resize(program_.gradients.size());
  std::iota(all_gradients_.begin(), all_gradients_.end(), 0);
  for (const ProgramBuffer& buffer : program_.buffers)
    if (buffer.kind == BufferKind::kGradient && buffer.last + 1 < static_cast<int32_t>(program_.steps.size()))
      gradients_stay_ = false;
  needs_zeros_.assign(program_.gradient_inputs.size(), false);
  for (const ProgramStep& step : program_.steps) {
    has_pending_calls_ = has_pending_calls_ || step.kind == StepKind::kBegin;
    const Kernel* kernel = step.kind == StepKind::kKernel ? find_kernel(step.kernel) : nullptr;
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const int32_t id = step.inputs[i];
      if (id < 0 || (kernel != nullptr && kernel->rules.may_lack == static_cast<int>(i))) continue;
      const ProgramBuffer& buffer =
          program_.buffers[static_cast<size_t>(program_.operands[static_cast<size_t>(id)].buffer)];
      if (buffer.kind != BufferKind::kCaller || buffer.source >= 0) continue;
      const int64_t incoming = -1 - buffer.source;
      if (step.kind == StepKind::kInspect) continue;  // looks at what is there
      if (step.kind != StepKind::kKernel || step.index != incoming) needs_zeros_[static_cast<size_t>(incoming)] = true;
    }
  }
  find_devices();
  gather_hooks();
}
Executor::~Executor() = default;

void Executor::find_devices() {
  device_memory_.assign(1, nullptr);
  for (size_t i = 1; i < program_.devices.size(); ++i) {
    const auto at = std::find_if(options_.devices.begin(), options_.devices.end(),
                                 [&](const Device* device) { return device->name == program_.devices[i]; });
    LT_USER_CHECK(ErrorKind::kInvalidProgram, at != options_.devices.end(), "the program's device ",
                  program_.devices[i], " is not there");
    device_memory_.push_back(*at);
  }
}

void Executor::gather_hooks() {
  hooks_ = options_.hooks;
  if (probes_) hooks_.push_back(*probes_);
  if (options_.guard) hooks_.push_back(guard_hooks());
  if (trace_) hooks_.push_back(trace_->hooks());
}

void Executor::observe(std::vector<Probe> probes, Observer observer) {
  probes_.reset();
  if (observer) probes_ = probe_hooks(std::move(probes), std::move(observer));
  gather_hooks();
}

void Executor::start_trace() {
  trace_ = std::make_unique<Trace>();
  gather_hooks();
}

std::string Executor::stop_trace() {
  if (!trace_) return Trace().json();
  std::string json = trace_->json();
  trace_.reset();
  gather_hooks();
  return json;
}

std::shared_ptr<Binding> Executor::find_binding(std::vector<int64_t> symbol_values) {
  auto at = std::find_if(bindings_.begin(), bindings_.end(),
                         [&](const auto& kept) { return kept->symbol_values == symbol_values; });
  if (at != bindings_.end()) {
    bindings_.splice(bindings_.begin(), bindings_, at);
    return bindings_.front();
  }
  // The order that packed well at other sizes is a good order still; the long search happens once.
  const std::vector<int32_t> order = bindings_.empty() ? program_.pack_order : bindings_.front()->pack_order;
  bindings_.push_front(
      bind_program(program_, std::move(symbol_values), order, options_.guard, options_.check_steps, options_.devices));
  if (bindings_.size() > static_cast<size_t>(options_.cached_bindings)) bindings_.pop_back();
  return bindings_.front();
}

const Binding& Executor::binding(std::span<const int64_t> symbol_values) {
  LT_USER_CHECK(ErrorKind::kInvalidArgument, symbol_values.size() == program_.symbols.size(), "expected ",
                program_.symbols.size(), " sizes, found ", symbol_values.size());
  return *find_binding({symbol_values.begin(), symbol_values.end()});
}

MemoryReport Executor::memory(std::span<const int64_t> symbol_values) { return binding(symbol_values).report; }

// Runs what allocates; where memory is out, the error tells what takes it.
template <class Allocate>
static void naming_the_largest(const Program& program, const Binding& binding, Allocate&& allocate) {
  try {
    allocate();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kOutOfMemory) throw;
    LT_USER_FAIL(ErrorKind::kOutOfMemory, error.what(), largest_values(program, binding));
  }
}

void Executor::allocate(RunState& state, int64_t most_bytes) {
  // Gradients of the last step that somebody still holds pin its arena; from then on they get a block of their own.
  if (last_done_ && !last_arena_.expired() && !program_.gradients.empty()) separate_gradients_ = true;
  Binding& binding = *state.binding_;
  state.packing_ = separate_gradients_ ? &separate_packing(program_, binding, options_.guard) : &binding.packing;
  BlockPool& pool = process_pool();
  const int64_t planned =
      state.packing_->arenas[0].size_bytes + state.packing_->gradient_block_bytes + binding.report.output_bytes;
  StepBlocks blocks(pool, planned, std::max(planned, most_bytes - binding.report.external_bytes));
  state.arena_ = blocks.take(state.packing_->arenas[0].size_bytes);
  std::vector<char*> arenas = {state.arena_->data};
  for (size_t d = 1; d < program_.devices.size(); ++d) {
    state.device_arenas_.push_back(device_memory_[d]->allocate(state.packing_->arenas[d].size_bytes));
    arenas.push_back(state.device_arenas_.back().get());
  }
  if (state.packing_->gradient_block_bytes > 0) state.gradients_ = blocks.take(state.packing_->gradient_block_bytes);
  const Packing& packing = *state.packing_;
  for (size_t i = 0; i < program_.buffers.size(); ++i) {
    if (packing.offsets[i] >= 0)
      state.bases_[i] = arenas[static_cast<size_t>(program_.buffers[i].device)] + packing.offsets[i];
    if (state.gradients_ && packing.gradient_offsets[i] >= 0)
      state.bases_[i] = state.gradients_->data + packing.gradient_offsets[i];
  }
  for (size_t buffer : constant_buffers_)
    state.bases_[buffer] = program_.constants.data() + program_.buffers[buffer].source;
  for (size_t buffer : output_buffers_) {
    state.outputs_.push_back(blocks.take(binding.buffer_bytes[buffer]));
    state.bases_[buffer] = state.outputs_.back()->data;
  }
  pool.trim(8);
}

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
      if (bound.scratch_bytes > 0)
        call.scratch =
            run.arenas[static_cast<size_t>(bound.device)] + state.packing_->scratch_offsets[static_cast<size_t>(index)];
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
  const int64_t rows = binding.values[static_cast<size_t>(loop.rows)];
  for (int64_t first = 0; first < rows; first += loop.block_rows) {
    const int64_t block[2] = {first, std::min(loop.block_rows, rows - first)};
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
  for (size_t i = 0; i < program_.step_symbols.size(); ++i) {
    const size_t symbol = program_.symbols.size() + i;
    if (program_.step_symbols[i].step >= region.first || binding.all_symbols[symbol] == state.step_sizes_[i]) continue;
    const KernelStatus status =
        set_symbols(program_, binding, binding.symbol_uses[i], symbol, {&state.step_sizes_[i], 1}, state.bases_);
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

std::vector<Inspected> Executor::take_inspected() {
  std::vector<Inspected> found = std::exchange(inspected_, {});
  std::sort(found.begin(), found.end(), [](const Inspected& a, const Inspected& b) { return a.place < b.place; });
  return found;
}

void Executor::begin_half() {
  inspected_.clear();
  inspected_.reserve(records_);
  last_steps_ns_ = 0;
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
    KernelStatus status = run_step(state, run, i);
    if (const int32_t symbol = run.binding.steps[static_cast<size_t>(i)].symbol; symbol >= 0 && status == nullptr)
      status = read_size(state, static_cast<size_t>(symbol));
    LT_USER_CHECK(ErrorKind::kRuntime, status == nullptr, step.node, ": ", status);
    for (size_t h = hooks_.size(); h-- > 0;)
      if (hooks_[h].after) hooks_[h].after(run, i);
    if (step.kind == StepKind::kLoop) i = program_.loops[static_cast<size_t>(step.index)].end - 1;
  }
}

void Executor::run_region(RunState& state) {
  const size_t number = std::exchange(state.next_region_, program_.regions.size());  // one that fails is the last
  const ProgramRegion& region = program_.regions[number];
  std::vector<char*> arenas = {state.arena_->data};
  for (const std::shared_ptr<char>& arena : state.device_arenas_) arenas.push_back(arena.get());
  const RunView run{
      program_, *state.binding_, *state.packing_, arenas, state.bases_, state.owners_, static_cast<int32_t>(number)};
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

void Executor::write_updates(RunState& state) {
  for (const ProgramUpdate& update : program_.updates) {
    TensorRef from = bind_operand(program_, *state.binding_, update.operand);
    const ProgramOperand& operand = program_.operands[static_cast<size_t>(update.operand)];
    from.data = state.bases_[static_cast<size_t>(operand.buffer)] +
                state.binding_->values[static_cast<size_t>(operand.offset)] * size_bytes(operand.dtype);
    const ProgramInput& input = program_.inputs[static_cast<size_t>(update.input)];
    TensorRef to = from;
    for (size_t d = 0; d < input.strides.size(); ++d)
      to.strides[d] = state.binding_->values[static_cast<size_t>(input.strides[d])];
    for (const CallerBuffer& caller : caller_buffers_)
      if (caller.source == update.input) to.data = state.bases_[caller.buffer];
    copy_tensor(from, to);
  }
}

OwnedTensor Executor::make_output(RunState& state, const ProgramOutput& output) const {
  const ProgramOperand& operand = program_.operands[static_cast<size_t>(output.operand)];
  const ProgramBuffer& buffer = program_.buffers[static_cast<size_t>(operand.buffer)];
  OwnedTensor tensor;
  tensor.ref = bind_operand(program_, *state.binding_, output.operand);
  tensor.offset = state.binding_->values[static_cast<size_t>(operand.offset)];
  tensor.ref.data = state.bases_[static_cast<size_t>(operand.buffer)] + tensor.offset * size_bytes(operand.dtype);
  if (buffer.kind == BufferKind::kCaller) {
    tensor.alias_input = static_cast<int>(buffer.source);
  } else {
    tensor.owner = state.outputs_[static_cast<size_t>(output_places_[static_cast<size_t>(operand.buffer)])];
  }
  return tensor;
}

std::shared_ptr<RunState> Executor::run_forward(std::span<const TensorRef> inputs, uint64_t random_key,
                                                int64_t most_bytes) {
  LT_USER_CHECK(ErrorKind::kInvalidArgument, inputs.size() == program_.inputs.size(), "expected ",
                program_.inputs.size(), " tensors, found ", inputs.size());
  auto state = std::make_shared<RunState>();
  state->plan_ = options_.plan;
  state->binding_ = find_binding(read_symbols(program_, inputs));
  state->random_key_ = random_key;
  state->contexts_.resize(static_cast<size_t>(program_.contexts));
  state->step_sizes_ = state->binding_->most;
  if (has_pending_calls_) state->pending_.resize(program_.steps.size());
  state->bases_.assign(program_.buffers.size(), nullptr);
  const Binding& binding = *state->binding_;
  naming_the_largest(program_, binding, [&] {
    std::vector<char*> bases(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i)
      bases[i] = bind_input(program_.inputs[i], binding.inputs[i], inputs[i], "input", state->copies_);
    for (const CallerBuffer& caller : caller_buffers_)
      if (caller.source >= 0) state->bases_[caller.buffer] = bases[static_cast<size_t>(caller.source)];
    allocate(*state, most_bytes);
  });
  last_done_ = false;
  last_arena_ = state->arena_;
  begin_half();
  run_region(*state);
  return state;
}

std::vector<OwnedTensor> Executor::forward(std::span<const TensorRef> inputs, uint64_t random_key,
                                           std::shared_ptr<RunState>* state_out, int64_t most_bytes) {
  std::shared_ptr<RunState> state = run_forward(inputs, random_key, most_bytes);
  write_updates(*state);
  std::vector<OwnedTensor> outputs;
  for (const ProgramOutput& output : program_.outputs) outputs.push_back(make_output(*state, output));
  if (state_out != nullptr) *state_out = std::move(state);
  return outputs;
}

TensorRef Executor::incoming_type(const RunState& state, size_t gradient) const {
  TensorRef type = state.binding_->incoming[gradient];
  if (program_.step_symbols.empty()) return type;
  std::vector<int64_t> symbols = state.binding_->symbol_values;
  symbols.insert(symbols.end(), state.step_sizes_.begin(), state.step_sizes_.end());
  const ProgramInput& input = program_.gradient_inputs[gradient];
  const auto value = [&](ExpressionId id) {
    return run_size_code(program_.expressions[static_cast<size_t>(id)], symbols);
  };
  std::transform(input.sizes.begin(), input.sizes.end(), type.sizes, value);
  std::transform(input.strides.begin(), input.strides.end(), type.strides, value);
  return type;
}

void Executor::begin_backward(RunState& state, std::span<const TensorRef> gradients,
                              std::span<const TensorRef> saved_inputs) {
  LT_USER_CHECK(
      ErrorKind::kInvalidArgument, !state.began_backward_,
      "backward through this forward a second time: its stashed activations are gone; run forward again for it");
  LT_USER_CHECK(ErrorKind::kInvalidArgument, gradients.size() == program_.gradient_inputs.size(), "expected ",
                program_.gradient_inputs.size(), " gradients, found ", gradients.size());
  state.began_backward_ = true;
  begin_half();
  Binding& binding = *state.binding_;
  std::vector<char*> incoming(gradients.size());
  state.left_out_.assign(gradients.size(), false);
  state.absent_.assign(gradients.size(), false);
  LT_USER_CHECK(ErrorKind::kInvalidArgument, saved_inputs.size() >= saved_inputs_.size(), "backward got ",
                saved_inputs.size(), " saved tensors, expected ", saved_inputs_.size());
  std::vector<char*> saved(program_.inputs.size());
  naming_the_largest(program_, binding, [&] {
    for (size_t i = 0; i < gradients.size(); ++i) {
      const ProgramInput& input = program_.gradient_inputs[i];
      if (gradients[i].present) {
        incoming[i] = bind_input(input, incoming_type(state, i), gradients[i], "gradient of", state.copies_);
        continue;
      }
      state.absent_[i] = true;
      if (!needs_zeros_[i]) {
        state.left_out_[i] = true;
        continue;
      }
      const int64_t bytes = incoming_type(state, i).numel() * size_bytes(input.dtype);
      state.copies_.push_back(process_pool().acquire(bytes));
      incoming[i] = state.copies_.back()->data;
      std::memset(incoming[i], 0, static_cast<size_t>(bytes));
    }
    for (size_t i = 0; i < saved_inputs_.size(); ++i)
      saved[saved_inputs_[i]] = bind_input(program_.inputs[saved_inputs_[i]], binding.inputs[saved_inputs_[i]],
                                           saved_inputs[i], "saved input", state.copies_);
  });
  for (const CallerBuffer& caller : caller_buffers_) {
    if (caller.source < 0) {
      state.bases_[caller.buffer] = incoming[static_cast<size_t>(-1 - caller.source)];
    } else if (caller.saved) {
      state.bases_[caller.buffer] = saved[static_cast<size_t>(caller.source)];
    }
  }
}

Gradients Executor::run_next_region(RunState& state) {
  LT_USER_CHECK(ErrorKind::kInvalidArgument, state.began_backward_ && !is_done(state),
                "a region of backward runs after begin_backward, once");
  const std::vector<int32_t>& gradients = program_.regions[state.next_region_].gradients;
  run_region(state);
  return hand_out(state, gradients);
}

Gradients Executor::backward(RunState& state, std::span<const TensorRef> gradients,
                             std::span<const TensorRef> saved_inputs) {
  LT_USER_CHECK(ErrorKind::kInvalidArgument, gradients_stay_,
                "this program's gradients leave region by region: some are gone before the last one ends");
  begin_backward(state, gradients, saved_inputs);
  while (!is_done(state)) run_region(state);
  return hand_out(state, all_gradients_);
}

Gradients Executor::hand_out(RunState& state, std::span<const int32_t> gradients) {
  Gradients results(state.binding_, gradients.size());
  for (int32_t id : gradients) {
    const BoundGradient& gradient = state.binding_->gradients[static_cast<size_t>(id)];
    const auto buffer = static_cast<size_t>(gradient.buffer);
    results.add(gradient.ref, state.bases_[buffer] + gradient.offset, state.packing_->offsets[buffer] < 0);
  }
  results.own(state.arena_, state.gradients_);
  if (!is_done(state)) return results;
  state.arena_.reset();
  state.gradients_.reset();
  state.outputs_.clear();
  state.copies_.clear();
  state.contexts_.clear();
  state.device_arenas_.clear();
  last_done_ = true;
  return results;
}

}  // namespace lowtide
