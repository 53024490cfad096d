#include "runtime/executor.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/parallel.h"
#include "base/size_code.h"
#include "bind/packing.h"
#include "bind/planned_sizes.h"
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
  if (!options_.pending) options_.pending = std::make_shared<PendingForwards>();
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
  const int threads = refresh_parallel_threads();
  auto at = std::find_if(bindings_.begin(), bindings_.end(), [&](const auto& kept) {
    return kept->threads == threads && kept->symbol_values == symbol_values;
  });
  if (at != bindings_.end()) {
    bindings_.splice(bindings_.begin(), bindings_, at);
    return bindings_.front();
  }
  bindings_.push_front(bind_program(program_, std::move(symbol_values), pack_order(), options_.guard,
                                    options_.check_steps, options_.devices));
  if (bindings_.size() > static_cast<size_t>(options_.cached_bindings)) bindings_.pop_back();
  return bindings_.front();
}

const std::vector<int32_t>& Executor::pack_order() const {
  return bindings_.empty() ? program_.pack_order : bindings_.front()->pack_order;
}

const Binding& Executor::binding(std::span<const int64_t> symbol_values) {
  LT_USER_CHECK(ErrorKind::kInvalidArgument, fit_symbols(program_, symbol_values), "expected ", program_.symbols.size(),
                " sizes, found ", symbol_values.size());
  return *find_binding({symbol_values.begin(), symbol_values.end()});
}

MemoryReport Executor::memory(std::span<const int64_t> symbol_values, std::optional<bool> asked) {
  binding(symbol_values);
  Binding& bound = *bindings_.front();
  const bool in_two = asked.value_or(latest_places_.in_two) && has_halves();
  Placement placement{in_two, {}, in_two};
  if (!in_two) placement = {latest_places_.separate && !latest_places_.in_two, latest_places_.used_up};
  return memory_with(program_, bound, options_.guard, placement, asked ? 1 : options_.pending->most());
}

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

char* Executor::host_place(const RunState& state, int64_t offset) {
  const bool is_above = state.passing_ && offset >= state.packing_->kept_bytes;
  return is_above ? state.passing_->data + (offset - state.packing_->kept_bytes) : state.arena_->data + offset;
}

void Executor::set_bases(RunState& state) {
  const Packing& packing = *state.packing_;
  for (size_t i = 0; i < program_.buffers.size(); ++i) {
    const int64_t offset = packing.offsets[i];
    const auto device = static_cast<size_t>(program_.buffers[i].device);
    if (offset >= 0)
      state.bases_[i] = device == 0 ? host_place(state, offset) : state.device_arenas_[device - 1].get() + offset;
    const auto [block, begin] = packing.gradient_places[i];
    if (block < 0) continue;
    const std::shared_ptr<Block>& taken = state.gradients_[static_cast<size_t>(block)];
    state.bases_[i] = taken ? taken->data + begin : nullptr;
  }
}

void Executor::take_passing(RunState& state, int64_t most_bytes) {
  const int64_t bytes = state.packing_->passing_bytes();
  if (state.step_arena_) state.passing_ = state.step_arena_->passing(state.step_place_, bytes);
  if (!state.passing_) state.passing_ = process_pool().acquire_to_work_in(bytes, most_bytes);
}

void Executor::take_gradient_blocks(RunState& state, size_t region) {
  const std::vector<GradientBlock>& blocks = state.packing_->gradient_blocks;
  state.gradients_.resize(blocks.size());
  // Those of another forward are there: these are added onto them and gone.
  const bool pass = options_.pending->now() < options_.pending->most_of_step();
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (state.gradients_[i] || blocks[i].taken != static_cast<int32_t>(region)) continue;
    const int64_t bytes = blocks[i].size_bytes;
    if (state.step_arena_) state.gradients_[i] = state.step_arena_->late(state.step_place_, i, bytes);
    if (state.gradients_[i]) continue;
    const int64_t largest = state.is_within_budget_ ? bytes : pass ? INT64_MAX : bytes + bytes / 4;
    state.gradients_[i] = process_pool().acquire_in_place(bytes, largest);
  }
}

void Executor::choose_packing(RunState& state, int64_t most_bytes) {
  // Gradients of the last step that somebody still holds pin its arena; from then on they get a block of their own.
  if (last_done_ && !last_arena_.expired() && !program_.gradients.empty()) separate_gradients_ = true;
  look_at_last_handed_out();
  const auto packing = [&] { return &packing_with(program_, *state.binding_, options_.guard, latest_places_); };
  latest_places_ = {separate_gradients_, {}};
  // One that is held after all moves the step to another arena, which no budget has counted.
  if (most_bytes == INT64_MAX) latest_places_.used_up = habits_[static_cast<size_t>(state.hand_over_)].used_up;
  state.packing_ = packing();
  const int64_t forwards = options_.pending->most();
  if (!in_two_.value_or(forwards > 1 && most_bytes == INT64_MAX) || !has_halves()) return;
  const Placement whole = std::exchange(latest_places_, {.separate = true, .used_up = {}, .in_two = true});
  const Packing* const in_two = packing();
  if (in_two_ || in_two->host_bytes(program_, forwards) < state.packing_->host_bytes(program_, forwards))
    state.packing_ = in_two;
  else
    latest_places_ = whole;
}

void Executor::allocate(RunState& state, int64_t most_bytes) {
  choose_packing(state, most_bytes);
  const Binding& binding = *state.binding_;
  const Packing& packing = *state.packing_;
  BlockPool& pool = process_pool();
  const bool in_two = packing.placement.in_two;
  const int64_t kept = in_two ? packing.kept_bytes : packing.arenas[0].size_bytes;
  // In two, what it only works in is there for whichever runs.
  state.mark_->hold((in_two ? kept : packing.host_bytes(program_, 1)) + binding.report.output_bytes +
                    binding.report.external_bytes);
  state.is_within_budget_ = most_bytes != INT64_MAX;
  state.step_arena_ = step_arena_;
  state.step_place_ = step_place_;
  if (step_arena_) state.arena_ = step_arena_->kept(step_place_, kept);
  // Of the pool. In two, gradients come later.
  const int64_t planned =
      (state.arena_ ? 0 : kept) + (in_two ? 0 : packing.gradient_block_bytes) + binding.report.output_bytes;
  int64_t rest = std::max(planned, most_bytes - binding.report.external_bytes);
  if (in_two) {
    take_passing(state, rest);
    rest -= state.passing_->size_bytes;
  }
  StepBlocks blocks(pool, planned, rest);
  if (!state.arena_) state.arena_ = blocks.take(kept);
  if (in_two)
    take_gradient_blocks(state, 0);
  else
    for (const GradientBlock& block : packing.gradient_blocks)
      state.gradients_.push_back(blocks.take(block.size_bytes));
  for (size_t d = 1; d < program_.devices.size(); ++d)
    state.device_arenas_.push_back(device_memory_[d]->allocate(packing.arenas[d].size_bytes));
  set_bases(state);
  for (size_t buffer : constant_buffers_)
    state.bases_[buffer] = program_.constants.data() + program_.buffers[buffer].source;
  for (size_t buffer : output_buffers_) {
    state.outputs_.push_back(blocks.take(binding.buffer_bytes[buffer]));
    state.bases_[buffer] = state.outputs_.back()->data;
  }
  pool.trim(8);
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

void Executor::write_updates(RunState& state, std::span<const TensorRef> inputs) {
  for (const ProgramUpdate& update : program_.updates) {
    TensorRef from = bind_operand(program_, *state.binding_, update.operand);
    const ProgramOperand& operand = program_.operands[static_cast<size_t>(update.operand)];
    from.data = state.bases_[static_cast<size_t>(operand.buffer)] +
                state.binding_->values[static_cast<size_t>(operand.offset)] * size_bytes(operand.dtype);
    copy_tensor(from, inputs[static_cast<size_t>(update.input)]);
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
    const TensorRef& input = state.binding_->inputs[static_cast<size_t>(buffer.source)];
    tensor.input_strides.assign(input.strides, input.strides + input.rank);
  } else {
    tensor.owner = state.outputs_[static_cast<size_t>(output_places_[static_cast<size_t>(operand.buffer)])];
  }
  return tensor;
}

std::shared_ptr<RunState> Executor::run_forward(std::span<const TensorRef> inputs, uint64_t random_key,
                                                int64_t most_bytes, HandOver hand_over) {
  LT_USER_CHECK(ErrorKind::kInvalidArgument, inputs.size() == program_.inputs.size(), "expected ",
                program_.inputs.size(), " tensors, found ", inputs.size());
  auto state = std::make_shared<RunState>();
  state->plan_ = options_.plan;
  state->binding_ = find_binding(read_symbols(program_, inputs));
  state->random_key_ = random_key;
  state->hand_over_ = hand_over;
  state->mark_ = options_.pending->begin();
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
                                           std::shared_ptr<RunState>* state_out, int64_t most_bytes,
                                           HandOver hand_over) {
  std::shared_ptr<RunState> state = run_forward(inputs, random_key, most_bytes, hand_over);
  write_updates(*state, inputs);
  std::vector<OwnedTensor> outputs;
  for (const ProgramOutput& output : program_.outputs) outputs.push_back(make_output(*state, output));
  state->passing_.reset();
  if (state_out != nullptr) *state_out = std::move(state);
  return outputs;
}

TensorRef Executor::incoming_type(const RunState& state, size_t gradient) const {
  TensorRef type = state.binding_->incoming[gradient];
  if (program_.step_symbols.empty()) return type;
  std::vector<int64_t> symbols = state.binding_->symbol_values;
  symbols.resize(program_.symbols.size());
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
    if (!state.packing_->placement.in_two) return;
    if (!state.passing_) take_passing(state, state.is_within_budget_ ? 0 : INT64_MAX);
  });
  for (const CallerBuffer& caller : caller_buffers_) {
    if (caller.source < 0) {
      state.bases_[caller.buffer] = incoming[static_cast<size_t>(-1 - caller.source)];
    } else if (caller.saved) {
      state.bases_[caller.buffer] = saved[static_cast<size_t>(caller.source)];
    }
  }
}

Gradients Executor::backward(RunState& state, std::span<const TensorRef> gradients,
                             std::span<const TensorRef> saved_inputs) {
  LT_USER_CHECK(ErrorKind::kInvalidArgument, gradients_stay_ && state.packing_->placement.used_up.empty(),
                "this program's gradients leave region by region: some are gone before the last one ends");
  begin_backward(state, gradients, saved_inputs);
  while (!is_done(state)) run_region(state);
  return hand_out(state, all_gradients_);
}

}  // namespace lowtide
