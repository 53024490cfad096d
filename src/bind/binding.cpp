#include "bind/binding.h"

#include <algorithm>
#include <chrono>
#include <tuple>

#include "base/checked.h"
#include "base/parallel.h"
#include "base/size_code.h"
#include "bind/packing.h"
#include "bind/planned_sizes.h"
#include "bind/run_symbols.h"
#include "bind/scratch.h"
#include "kernels/cpu/block_rows.h"

namespace lowtide {

// Of one tensor, and of all buffers together: 128 TiB, what a processor can address.
static constexpr int64_t kMostBytes = int64_t{1} << 47;

static int64_t value_of(const Binding& binding, ExpressionId id) { return binding.values[static_cast<size_t>(id)]; }

static TensorRef resolve(const Binding& binding, DType dtype, const std::vector<ExpressionId>& sizes,
                         const std::vector<ExpressionId>& strides) {
  TensorRef ref;
  ref.dtype = dtype;
  ref.rank = static_cast<int32_t>(sizes.size());
  ref.present = true;
  for (size_t i = 0; i < sizes.size(); ++i) {
    ref.sizes[i] = value_of(binding, sizes[i]);
    ref.strides[i] = value_of(binding, strides[i]);
    LT_USER_CHECK(ErrorKind::kInvalidArgument, ref.sizes[i] >= 0, "these input sizes give a tensor of negative size ",
                  ref.sizes[i]);
    LT_USER_CHECK(ErrorKind::kInvalidArgument, ref.strides[i] >= 0,
                  "these input sizes give a tensor of negative stride ", ref.strides[i]);
  }
  // Kernels multiply sizes and strides without looking: none of it may leave 64 bits.
  int64_t numel = size_bytes(dtype);
  for (int32_t i = 0; i < ref.rank; ++i) {
    numel = checked_multiply(numel, std::max<int64_t>(ref.sizes[i], 1));
    LT_USER_CHECK(ErrorKind::kInvalidArgument,
                  checked_multiply(std::max<int64_t>(ref.sizes[i], 1), ref.strides[i]) <= kMostBytes,
                  "these input sizes give a tensor of the stride ", ref.strides[i]);
  }
  LT_USER_CHECK(ErrorKind::kInvalidArgument, numel <= kMostBytes, "these input sizes give a tensor of ", numel,
                " bytes: more than any memory");
  return ref;
}

int64_t extent(const TensorRef& tensor) {
  __int128 last = 0;
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.sizes[i] == 0) return 0;
    last += static_cast<__int128>(tensor.sizes[i] - 1) * tensor.strides[i];
  }
  return static_cast<int64_t>(last + 1);
}

size_t count_records(const Program& program) {
  size_t records = 0;
  for (const ProgramStep& step : program.steps)
    if (step.kind == StepKind::kInspect) records += step.attrs.ints("records").size();
  return records;
}

TensorRef bind_operand(const Program& program, const Binding& binding, int32_t id) {
  const ProgramOperand& operand = program.operands[static_cast<size_t>(id)];
  return resolve(binding, operand.dtype, operand.sizes, operand.strides);
}

BoundAttrs bind_attrs(const Binding& binding, const AttrList<int64_t>& attrs) {
  BoundAttrs bound;
  for (const auto& [name, value] : attrs) {
    if (const int64_t* id = std::get_if<int64_t>(&value)) {
      bound.set(name, value_of(binding, static_cast<ExpressionId>(*id)));
    } else if (const auto* ids = std::get_if<std::vector<int64_t>>(&value)) {
      std::vector<int64_t> plain;
      for (int64_t each : *ids) plain.push_back(value_of(binding, static_cast<ExpressionId>(each)));
      bound.set(name, std::move(plain));
    } else {
      bound.set(name, value);
    }
  }
  return bound;
}

bool operands_broadcast(const KernelCall& call) {
  const TensorRef& y = call.outputs[0];
  for (const TensorRef& x : call.inputs) {
    if (!x.present || !y.present) continue;
    if (x.rank > y.rank) return false;
    for (int i = 0; i < x.rank; ++i) {
      const int64_t size = x.sizes[x.rank - 1 - i];
      if (size != 1 && size != y.sizes[y.rank - 1 - i]) return false;
    }
  }
  return true;
}

KernelCall step_call(const Binding& binding, const BoundStep& step) {
  KernelCall call;
  const std::span<const TensorRef> refs(binding.refs);
  call.inputs = refs.subspan(static_cast<size_t>(step.first), static_cast<size_t>(step.inputs));
  call.outputs = refs.subspan(static_cast<size_t>(step.first + step.inputs), static_cast<size_t>(step.outputs));
  call.state = step.state;
  return call;
}

BoundCall bound_call(const Binding& binding, const BoundStep& step) { return {step_call(binding, step), &step.attrs}; }

// The kernel, and the device in the program's list whose memory it works in.
static std::pair<const Kernel*, int32_t> find_kernel_on(const Program& program, std::span<const Device* const> devices,
                                                        const std::string& name) {
  if (const Kernel* kernel = find_kernel(name)) return {kernel, 0};
  for (const Device* device : devices) {
    const auto kernel = std::find_if(device->kernels.begin(), device->kernels.end(),
                                     [&](const Kernel& each) { return each.name == name; });
    if (kernel == device->kernels.end()) continue;
    const auto at = std::find(program.devices.begin(), program.devices.end(), device->name);
    LT_USER_CHECK(ErrorKind::kInvalidProgram, at != program.devices.end(), name, " works on ", device->name,
                  ", which the program does not name");
    return {&*kernel, static_cast<int32_t>(at - program.devices.begin())};
  }
  LT_USER_FAIL(ErrorKind::kInvalidProgram, "this build has no kernel ", name);
}

// A kernel reaches its own device's memory; a device's Copy reaches the host's too.
static void check_devices(const Program& program, const ProgramStep& step, const BoundStep& bound) {
  auto check = [&](int32_t id) {
    if (id < 0) return;
    const ProgramBuffer& buffer =
        program.buffers[static_cast<size_t>(program.operands[static_cast<size_t>(id)].buffer)];
    LT_USER_CHECK(
        ErrorKind::kInvalidProgram,
        buffer.device == bound.device || (buffer.device == 0 && has_trait(bound.kernel->op, Trait::kFreshBytes)),
        step.kernel, " of ", step.node, " works on ", program.devices[static_cast<size_t>(bound.device)], ", but ",
        buffer.name, " lies on ", program.devices[static_cast<size_t>(buffer.device)]);
  };
  for (int32_t id : step.inputs) check(id);
  for (int32_t id : step.outputs) check(id);
}

static void bind_operands(const Program& program, Binding& binding) {
  binding.steps.resize(program.steps.size());
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const ProgramStep& step = program.steps[i];
    BoundStep& bound = binding.steps[i];
    bound.first = static_cast<int32_t>(binding.refs.size());
    bound.inputs = static_cast<int32_t>(step.inputs.size());
    bound.outputs = static_cast<int32_t>(step.outputs.size());
    auto add = [&](int32_t id) {
      if (id < 0) {
        binding.refs.emplace_back();
        binding.ref_operands.push_back(-1);
        binding.ref_buffers.push_back(-1);
        binding.ref_offsets.push_back(0);
        return;
      }
      const ProgramOperand& operand = program.operands[static_cast<size_t>(id)];
      binding.refs.push_back(bind_operand(program, binding, id));
      binding.ref_operands.push_back(id);
      binding.ref_buffers.push_back(operand.buffer);
      binding.ref_offsets.push_back(value_of(binding, operand.offset) * size_bytes(operand.dtype));
    };
    for (int32_t id : step.inputs) add(id);
    for (int32_t id : step.outputs) add(id);
    if (step.kind != StepKind::kEmit) bound.attrs = bind_attrs(binding, step.attrs);
    if (step.kind == StepKind::kInspect)
      bound.inspection = {&bound.attrs.ints("records"), &bound.attrs.ints("places"),
                          bound.attrs.has("sources") ? &bound.attrs.ints("sources") : nullptr};
    if (step.kind == StepKind::kHostCall && step.target.empty()) {
      const int64_t count = bound.attrs.i("num_grads");
      LT_USER_CHECK(ErrorKind::kInvalidProgram, count >= 0 && count <= bound.inputs, step.node, " takes ", count,
                    " gradients of ", bound.inputs, " operands");
      bound.grads = static_cast<size_t>(count);
    }
  }
  for (int32_t id : program.gradients) {
    const ProgramOperand& operand = program.operands[static_cast<size_t>(id)];
    binding.gradients.push_back({bind_operand(program, binding, id), operand.buffer,
                                 value_of(binding, operand.offset) * size_bytes(operand.dtype)});
  }
  for (const ProgramInput& input : program.inputs)
    binding.inputs.push_back(resolve(binding, input.dtype, input.sizes, input.strides));
  for (const ProgramInput& input : program.gradient_inputs)
    binding.incoming.push_back(resolve(binding, input.dtype, input.sizes, input.strides));
  auto first_ref = [&](int32_t step) {
    const size_t at = static_cast<size_t>(step);
    return at == binding.steps.size() ? binding.refs.size() : static_cast<size_t>(binding.steps[at].first);
  };
  for (const ProgramRegion& region : program.regions)
    binding.relocations.emplace_back(binding, first_ref(region.first), first_ref(region.end));
  binding.symbol_uses = find_uses(program, binding);
}

static size_t state_lines(const Kernel& kernel, const KernelCall& call) {
  return (state_bytes_of(kernel, call) + sizeof(StateLine) - 1) / sizeof(StateLine);
}

// Requires: refs no longer grows, spans into it are safe.
static void bind_kernels(const Program& program, Binding& binding, std::span<const Device* const> devices) {
  size_t lines = 0;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    if (program.steps[i].kind != StepKind::kKernel) continue;
    BoundStep& bound = binding.steps[i];
    std::tie(bound.kernel, bound.device) = find_kernel_on(program, devices, program.steps[i].kernel);
    check_devices(program, program.steps[i], bound);
    const BoundCall call = bound_call(binding, bound);
    const Op op = bound.kernel->op;
    bound.broadcasts =
        bound.outputs > 0 && (info(op).category == OpCategory::kPointwise || has_trait(op, Trait::kBroadcasts));
    LT_USER_CHECK(ErrorKind::kInvalidProgram, !bound.broadcasts || call.outputs[0].present, program.steps[i].node,
                  ": a step whose result has no place");
    // Sizes that the graph could not prove equal: `min(2, a)` against `b`.
    LT_USER_CHECK(ErrorKind::kInvalidArgument, !bound.broadcasts || operands_broadcast(call), program.steps[i].node,
                  ": these input sizes do not broadcast");
    if (bound.kernel->scratch_bytes) bound.scratch_bytes = bound.kernel->scratch_bytes(call);
    if (bound.kernel->library_bytes)
      binding.report.external_bytes = std::max(binding.report.external_bytes, bound.kernel->library_bytes(call));
    lines += state_lines(*bound.kernel, call);
  }
  binding.states.resize(lines);
  for (BoundStep& bound : binding.steps) {
    if (bound.kernel == nullptr || bound.kernel->prepare == nullptr) continue;
    const BoundCall call = bound_call(binding, bound);
    lines -= state_lines(*bound.kernel, call);
    bound.state = binding.states[lines].bytes;
    bound.kernel->prepare(call, bound.state);
  }
  for (size_t i = 0; i < program.step_symbols.size(); ++i)
    binding.steps[static_cast<size_t>(program.step_symbols[i].step)].symbol = static_cast<int32_t>(i);
}

Relocations::Relocations(const Binding& binding, size_t first_ref, size_t end_ref)
    : first_(binding.buffer_bytes.size() + 1, 0), bases_(binding.buffer_bytes.size(), nullptr) {
  for (size_t i = first_ref; i < end_ref; ++i)
    if (binding.ref_buffers[i] >= 0) ++first_[static_cast<size_t>(binding.ref_buffers[i]) + 1];
  for (size_t b = 1; b < first_.size(); ++b) first_[b] += first_[b - 1];
  refs_.resize(static_cast<size_t>(first_.back()));
  std::vector<int32_t> next = first_;
  for (size_t i = first_ref; i < end_ref; ++i)
    if (binding.ref_buffers[i] >= 0)
      refs_[static_cast<size_t>(next[static_cast<size_t>(binding.ref_buffers[i])]++)] = static_cast<int32_t>(i);
}

void Relocations::apply(Binding& binding, std::span<char* const> bases) {
  for (size_t b = 0; b < bases_.size(); ++b) {
    if (bases_[b] == bases[b]) continue;
    bases_[b] = bases[b];
    for (int32_t i = first_[b]; i < first_[b + 1]; ++i) {
      const auto ref = static_cast<size_t>(refs_[static_cast<size_t>(i)]);
      binding.refs[ref].data = bases[b] + binding.ref_offsets[ref];
    }
  }
}

// What the caller's tensor is, as the program says; whoever binds it compares.
static TensorRef callers_tensor(const Program& program, const Binding& binding, int64_t source) {
  const ProgramInput& input = source >= 0 ? program.inputs[static_cast<size_t>(source)]
                                          : program.gradient_inputs[static_cast<size_t>(-1 - source)];
  return resolve(binding, input.dtype, input.sizes, input.strides);
}

// Operands that are other ones with the sizes that steps find, by id: set_symbols checks them then. With the most that
// each size may be, a position that several of them make need not be one: %x[n // (n // u)] of n numbers, where u is n.
static std::vector<bool> checked_in_steps(const Program& program, const Binding& binding) {
  std::vector<bool> found(program.operands.size(), false);
  for (size_t i = 0; i < program.step_symbols.size(); ++i)
    for (int32_t ref : binding.symbol_uses[i].refs)
      found[static_cast<size_t>(binding.ref_operands[static_cast<size_t>(ref)])] = true;
  return found;
}

// Whatever a program says, a step must not leave its buffer: the check that stands between a damaged plan and memory.
static void check_bounds(const Program& program, const Binding& binding) {
  std::vector<int64_t> ends(program.buffers.size(), 0);  // of the last operand in each
  for (size_t i = 0; i < program.loops.size(); ++i)      // which is another in each block
    for (int32_t ref : binding.symbol_uses[program.step_symbols.size() + i].refs) {
      const size_t buffer = static_cast<size_t>(binding.ref_buffers[static_cast<size_t>(ref)]);
      ends[buffer] = binding.buffer_bytes[buffer];
    }
  const std::vector<bool> is_checked_later = checked_in_steps(program, binding);
  for (size_t i = 0; i < program.operands.size(); ++i) {
    const ProgramOperand& operand = program.operands[i];
    const TensorRef ref = bind_operand(program, binding, static_cast<int32_t>(i));
    const int64_t offset = value_of(binding, operand.offset);
    const size_t buffer = static_cast<size_t>(operand.buffer);
    const __int128 end = extent(ref) == 0 ? 0 : (static_cast<__int128>(offset) + extent(ref)) * size_bytes(ref.dtype);
    const bool is_inside = offset >= 0 && offset <= kMostBytes && end <= binding.buffer_bytes[buffer];
    LT_USER_CHECK(ErrorKind::kInvalidProgram, is_inside || is_checked_later[i], "operand ", i, " leaves its buffer %",
                  program.buffers[buffer].name, " of ", binding.buffer_bytes[buffer], " bytes");
    ends[buffer] = std::max(ends[buffer], is_inside ? static_cast<int64_t>(end) : binding.buffer_bytes[buffer]);
  }
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const ProgramBuffer& buffer = program.buffers[b];
    int64_t room = ends[b];  // no more than what is used
    if (buffer.kind == BufferKind::kConstant) room = static_cast<int64_t>(program.constants.size()) - buffer.source;
    if (buffer.kind == BufferKind::kCaller) {
      const TensorRef tensor = callers_tensor(program, binding, buffer.source);
      room = extent(tensor) * size_bytes(tensor.dtype);
    }
    LT_USER_CHECK(ErrorKind::kInvalidProgram, binding.buffer_bytes[b] <= room, "buffer %", buffer.name, " has ",
                  binding.buffer_bytes[b], " bytes where there are ", room);
  }
  for (const ProgramUpdate& update : program.updates) {
    const TensorRef from = bind_operand(program, binding, update.operand);
    const TensorRef to = callers_tensor(program, binding, update.input);
    LT_USER_CHECK(
        ErrorKind::kInvalidProgram,
        from.dtype == to.dtype && from.rank == to.rank && std::equal(from.sizes, from.sizes + from.rank, to.sizes),
        "the update of %", program.inputs[static_cast<size_t>(update.input)].name, " is another tensor");
  }
}

// Sizes that steps write are the most that they may be; a loop is in its first block.
static void evaluate(const Program& program, Binding& binding) {
  std::vector<int64_t>& symbols = binding.all_symbols;
  symbols = planned_sizes(program, binding.symbol_values);
  binding.most.assign(symbols.begin() + static_cast<std::ptrdiff_t>(program.symbols.size()), symbols.end());
  symbols.resize(symbol_count(program), 0);
  auto value = [&](ExpressionId id) { return run_size_code(program.expressions[static_cast<size_t>(id)], symbols); };
  for (size_t i = 0; i < program.loops.size(); ++i) {
    const ProgramLoop& loop = program.loops[i];
    LT_USER_CHECK(ErrorKind::kInvalidProgram, loop.block_rows % cpu::kRowsPerBlock == 0, "loop ", i, " has blocks of ",
                  loop.block_rows, " rows, expected a multiple of ", cpu::kRowsPerBlock);
    symbols[loop_symbol(program, i) + 1] = std::min(block_rows(loop, value), value(loop.rows));
  }
  for (const std::vector<int64_t>& code : program.expressions) binding.values.push_back(run_size_code(code, symbols));
}

static std::unique_ptr<Binding> bind_at(const Program& program, std::vector<int64_t> symbol_values,
                                        std::span<const int32_t> known_order, bool guard, const StepCheck& check_steps,
                                        std::span<const Device* const> devices) {
  const auto start = std::chrono::steady_clock::now();
  auto binding = std::make_unique<Binding>();
  binding->symbol_values = std::move(symbol_values);
  binding->threads = parallel_threads();
  evaluate(program, *binding);
  int64_t all_bytes = 0;
  for (const ProgramBuffer& buffer : program.buffers) {
    const int64_t bytes = value_of(*binding, buffer.size_bytes);
    LT_USER_CHECK(ErrorKind::kInvalidArgument, bytes >= 0, "these input sizes give %", buffer.name, " a negative size");
    all_bytes = checked_add(all_bytes, bytes);
    LT_USER_CHECK(ErrorKind::kInvalidArgument, all_bytes <= kMostBytes, "these input sizes need more than ", kMostBytes,
                  " bytes: more than any memory");
    binding->buffer_bytes.push_back(bytes);
    if (buffer.kind == BufferKind::kGradient) binding->report.gradient_bytes += (bytes + 63) / 64 * 64;
    if (buffer.kind == BufferKind::kOutput) binding->report.output_bytes += (bytes + 63) / 64 * 64;
  }
  binding->report.output_bytes += static_cast<int64_t>(count_records(program) * sizeof(Inspected));
  bind_operands(program, *binding);
  check_bounds(program, *binding);
  if (check_steps) check_steps(program, *binding);
  bind_kernels(program, *binding, devices);
  lessen_scratch(program, *binding);
  binding->pack_order.assign(known_order.begin(), known_order.end());
  binding->packing = make_packing(program, *binding, {}, guard, binding->pack_order);
  MemoryReport& report = binding->report;
  report.arena_bytes = binding->packing.arenas[0].size_bytes;
  report.lower_bound_bytes = binding->packing.arenas[0].lower_bound_bytes;
  report.peak_bytes = report.arena_bytes + report.output_bytes + report.external_bytes;
  report.bind_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return binding;
}

std::unique_ptr<Binding> bind_program(const Program& program, std::vector<int64_t> symbol_values,
                                      std::span<const int32_t> known_order, bool guard, const StepCheck& check_steps,
                                      std::span<const Device* const> devices) {
  try {
    return bind_at(program, std::move(symbol_values), known_order, guard, check_steps, devices);
  } catch (const Error& error) {
    const bool is_of_sizes = error.kind() == ErrorKind::kInvalidArgument || error.kind() == ErrorKind::kInvalidProgram;
    if (program.step_symbols.empty() || !is_of_sizes) throw;
    // The caller's sizes are right: a size that shrinks as another one grows (n // u) has no room at the most of that.
    throw Error(ErrorKind::kUnsupported, concat(error.what(), " at the most that sizes from data may be"));
  }
}

}  // namespace lowtide
