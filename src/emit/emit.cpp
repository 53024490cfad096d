#include <algorithm>
#include <set>

#include "base/check.h"
#include "emit/emitter.h"
#include "ir/data_sizes.h"
#include "ir/print.h"

namespace lowtide {

PlanResult plan(const Graph& graph, const PlanOptions& options) { return Emitter(graph, options).run(); }

PlanResult Emitter::run() {
  program_.name = graph_.name();
  program_.regions = {{"forward", 0, 0, {}}};
  places_.resize(graph_.value_count());
  may_take_.resize(graph_.value_count());
  for (size_t i = 0; i < graph_.outputs().size(); ++i)
    if (graph_.outputs()[i].kind == OutputKind::kGradient) gradients_of_[graph_.outputs()[i].value.index].push_back(i);
  read_inputs();
  read_data_sizes();
  const std::vector<NodeId>& order = graph_.order();
  for (size_t i = 0; i < order.size(); ++i) {
    emit(order[i], static_cast<int32_t>(i));
    if (options_.list_places) list_places(order[i]);
    emit_ready_gradients(order[i]);
    step_positions_.resize(program_.steps.size(), static_cast<int32_t>(i));
  }
  wait_for_all();
  if (!graph_.yield()) keep_what_updates_overwrite({});
  step_positions_.resize(program_.steps.size(), static_cast<int32_t>(order.size()) - 1);
  program_.regions.back().end = static_cast<int32_t>(program_.steps.size());
  number_gradients();
  finish_outputs();
  make_loops();
  cut_backward();
  finish_lifetimes();
  check(program_);
  std::vector<int32_t> value_buffers;
  for (const std::optional<Storage>& place : places_) value_buffers.push_back(place ? place->buffer : -1);
  return {.program = std::move(program_),
          .choices = std::move(choices_),
          .value_buffers = std::move(value_buffers),
          .step_positions = std::move(step_positions_),
          .may_take = std::move(may_take_),
          .operands = std::move(operands_),
          .buffer_numel = std::move(buffer_numel_),
          .places = std::move(value_places_)};
}

void Emitter::list_places(NodeId id) {
  const int32_t region = static_cast<int32_t>(program_.regions.size()) - 1;
  for (ValueId output : graph_.node(id).outputs)
    if (output && places_[output.at()])
      value_places_.push_back({output, operand_of(output), static_cast<int32_t>(program_.steps.size()), region});
}

// The elements from the first to the last: more than numel where strides leave gaps.
static Dim extent(const Shape& shape, const Shape& strides) {
  Dim last = 0;
  for (size_t i = 0; i < shape.size(); ++i) last = last + (shape[i] - 1) * strides[i];
  return max(Dim(0), last + 1);
}

void Emitter::read_inputs() {
  std::set<std::string> known;
  for (size_t i = 0; i < graph_.inputs().size(); ++i) {
    const Shape& shape = graph_.type(graph_.inputs()[i].value).shape;
    for (size_t d = 0; d < shape.size(); ++d) {
      std::set<std::string> names;
      collect_symbols(shape[d], names);
      if (names.size() != 1 || !(shape[d] == Dim::symbol(*names.begin())) || !known.insert(*names.begin()).second)
        continue;
      const std::string& symbol = *names.begin();
      symbols_.push_back(symbol);
      program_.symbols.push_back({symbol, static_cast<int32_t>(i), static_cast<int32_t>(d)});
      const DimRange range = range_of(shape[d], graph_.ranges());
      program_.symbol_low.push_back(range.low);
      program_.symbol_high.push_back(range.high);
    }
  }
  for (size_t i = 0; i < graph_.inputs().size(); ++i) {
    const GraphInput& input = graph_.inputs()[i];
    const TensorType& type = graph_.type(input.value);
    Storage storage;
    storage.strides = input.strides.empty() ? row_major_strides(type.shape) : input.strides;
    storage.buffer = add_buffer(BufferKind::kCaller, graph_.value(input.value).name,
                                input.strides.empty() ? numel(type.shape) : extent(type.shape, input.strides),
                                type.dtype, static_cast<int64_t>(i));
    ProgramInput record;
    record.name = graph_.value(input.value).name;
    record.dtype = type.dtype;
    for (const Dim& dim : type.shape) record.sizes.push_back(expression(dim));
    for (const Dim& stride : storage.strides) record.strides.push_back(expression(stride));
    record.flexible = input.kind == InputKind::kInput;
    program_.inputs.push_back(std::move(record));
    places_[input.value.at()] = std::move(storage);
  }
}

// Expressions name all symbols of the program, from the first step on.
void Emitter::read_data_sizes() {
  for (const DataSize& size : data_sizes(graph_)) {
    program_.step_symbols.push_back({size.symbol, -1, -1, size.low.constant(), expression(size.high)});
    symbols_.push_back(size.symbol);
  }
}

void Emitter::emit(NodeId id, int32_t position) {
  const Node& node = graph_.node(id);
  wait_for_due(id);
  if (is_view(node.op)) return emit_view(id);
  for (ValueId input : node.inputs)
    if (input && places_[input.at()]) wait_for(places_[input.at()]->buffer);
  if (is_yield(node.op)) return emit_yield(id);
  if (is_call(node.op) || is_call_gradient(node.op)) return emit_call(id);
  if (is_collective(node.op)) return emit_collective(id);
  if (is_inspection(node.op)) return emit_inspect(id);
  if (has_trait(node.op, Trait::kFiller)) {
    const bool symbolic = node.attrs.has("int_value") && !node.attrs.dim("int_value").is_constant();
    if (!symbolic) return emit_constant(id);
  }
  if (takes_copy(id)) return;
  emit_kernel(id, position);
  if (makes_size(node.op)) emit_data_size(id);
}

void Emitter::emit_constant(NodeId id) {
  const Node& node = graph_.node(id);
  if (!node.outputs[0]) return;
  const int64_t integer =
      node.attrs.has("int_value") ? node.attrs.i("int_value") : static_cast<int64_t>(node.attrs.f("value"));
  const double number = node.attrs.has("value") ? node.attrs.f("value") : static_cast<double>(integer);
  places_[node.outputs[0].at()] = constant_storage(node.outputs[0], node.attrs.t("dtype"), number, integer);
}

void Emitter::emit_yield(NodeId id) {
  const Node& node = graph_.node(id);
  wait_for_all();
  keep_what_updates_overwrite(id);
  const int32_t middle = static_cast<int32_t>(program_.steps.size());
  program_.regions[0].end = middle;
  program_.regions.push_back({"backward", middle, middle, {}});
  copies_.clear();  // a copy made for forward must not become a stash by accident
  const std::vector<int64_t> grads = node.attrs.is("grads");
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    program_.gradient_outputs.push_back(static_cast<int32_t>(grads[i]));
    ProgramInput record;
    const ValueId value = node.outputs[i];
    const TensorType& type = graph_.type(value ? value : node.inputs[static_cast<size_t>(grads[i])]);
    record.name = value ? graph_.value(value).name : "unused";
    record.dtype = type.dtype;
    record.flexible = true;
    const Shape strides = row_major_strides(type.shape);
    for (const Dim& dim : type.shape) record.sizes.push_back(expression(dim));
    for (const Dim& stride : strides) record.strides.push_back(expression(stride));
    program_.gradient_inputs.push_back(std::move(record));
    if (!value) continue;
    Storage storage;
    storage.buffer = add_buffer(BufferKind::kCaller, graph_.value(value).name, numel(type.shape), type.dtype,
                                -1 - static_cast<int64_t>(i));
    storage.strides = strides;
    places_[value.at()] = std::move(storage);
  }
}

void Emitter::emit_call(NodeId id) {
  const Node& node = graph_.node(id);
  ProgramStep step;
  step.kind = StepKind::kHostCall;
  step.attrs = program_attrs(node.attrs);
  step.node = describe(graph_, id);
  const bool backward = is_call_gradient(node.op);
  if (!backward) step.target = node.target;
  size_t first = 0;
  if (backward) {
    step.index = context_slots_.at(node.inputs[0].index);
    first = 1;
  }
  for (size_t i = first; i < node.inputs.size(); ++i)
    step.inputs.push_back(node.inputs[i] ? operand_of(node.inputs[i]) : -1);
  for (ValueId output : node.outputs) {
    if (!output) {
      step.outputs.push_back(-1);
    } else if (graph_.type(output).dtype == DType::kContext) {
      step.index = program_.contexts++;
      context_slots_[output.index] = step.index;
    } else {
      places_[output.at()] = place_new(output, row_major_strides(graph_.type(output).shape));
      step.outputs.push_back(operand_of(output));
    }
  }
  if (!backward && step.index >= 0) {
    // The backward node's outputs say which inputs need a gradient.
    for (NodeId user : graph_.order()) {
      const Node& grad = graph_.node(user);
      if (!is_call_gradient(grad.op)) continue;
      auto slot = context_slots_.find(grad.inputs[0].index);
      if (slot == context_slots_.end() || slot->second != step.index) continue;
      for (size_t i = 0; i < grad.outputs.size() && i < 32; ++i)
        if (grad.outputs[i]) step.needs_grad |= uint32_t{1} << i;
      break;
    }
  }
  KernelChoice choice{step.node, "python", {}};
  choices_.push_back(std::move(choice));
  program_.steps.push_back(std::move(step));
}

// One step serves all who look at a value: modules hand on what their children return.
void Emitter::emit_inspect(NodeId id) {
  const Node& node = graph_.node(id);
  const ValueId value = node.inputs[0];
  auto [at, is_first] = inspect_steps_.try_emplace(value.index, static_cast<int32_t>(program_.steps.size()));
  AttrList<int64_t> attrs =
      is_first ? program_attrs(node.attrs) : program_.steps[static_cast<size_t>(at->second)].attrs;
  auto append = [&](std::string_view name, const Dim& number) {
    std::vector<int64_t> numbers;
    if (attrs.has(name)) numbers = attrs.ints(name);
    numbers.push_back(expression(number));
    attrs.set(name, std::move(numbers));
  };
  append("records", node.attrs.dim("record"));
  append("places", inspections_++);
  attrs.erase("record");
  if (!is_first) {
    program_.steps[static_cast<size_t>(at->second)].attrs = std::move(attrs);
    return;
  }
  ProgramStep step;
  step.kind = StepKind::kInspect;
  step.inputs = {operand_of(value)};
  step.attrs = std::move(attrs);
  step.node = describe(graph_, id);
  choices_.push_back({step.node, "inspect", {}});
  program_.steps.push_back(std::move(step));
}

void Emitter::emit_data_size(NodeId id) {
  const Node& node = graph_.node(id);
  const auto at = std::find_if(program_.step_symbols.begin(), program_.step_symbols.end(),
                               [&](const StepSymbol& each) { return each.name == node.attrs.s("symbol"); });
  at->step = static_cast<int32_t>(program_.steps.size()) - 1;
  at->operand = program_.steps.back().outputs[0];
}

static OperandInfo operand_info(const Graph& graph, ValueId value, const Storage& storage) {
  const TensorType& type = graph.type(value);
  OperandInfo info{type.dtype, static_cast<int>(type.shape.size()), true, layout_of(type.shape, storage.strides)};
  for (size_t i = 0; i < type.shape.size(); ++i)
    if (type.shape[i].is_constant()) info.sizes[i] = type.shape[i].constant();
  return info;
}

void Emitter::emit_kernel(NodeId id, int32_t position) {
  const Node& node = graph_.node(id);
  const std::string place = describe(graph_, id);
  std::vector<OperandInfo> inputs, outputs;
  for (ValueId input : node.inputs)
    inputs.push_back(input ? operand_info(graph_, input, *places_[input.at()]) : OperandInfo{});
  for (ValueId output : node.outputs) {
    OperandInfo info;
    if (output)
      info = {graph_.type(output).dtype, static_cast<int>(graph_.type(output).shape.size()), true, Layout::kRowMajor};
    outputs.push_back(info);
  }
  KernelChoice choice;
  choice.node = place;
  const Kernel& kernel = choose_kernel(graph_, id, inputs, outputs, options_, choice);
  choices_.push_back(std::move(choice));

  bool channels_last = false;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].present && kernel.rules.input(i) == Accept::kDense && inputs[i].layout == Layout::kChannelsLast)
      channels_last = true;

  ProgramStep step;
  step.kernel = kernel.name;
  step.attrs = program_attrs(node.attrs);
  step.node = place;
  std::vector<Storage> storages(node.inputs.size());
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId input = node.inputs[i];
    if (!input) {
      step.inputs.push_back(-1);
      continue;
    }
    storages[i] = comply(input, kernel.rules.input(i), channels_last, place);
    step.inputs.push_back(add_operand(graph_.type(input), storages[i]));
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const ValueId output = node.outputs[i];
    if (!output) {
      step.outputs.push_back(-1);
      continue;
    }
    const OutputRule rule = kernel.rules.output(i);
    const Shape strides = output_strides(rule.layout, node, output, storages);
    std::optional<Storage> reused = in_place(rule.takes, id, i, strides, position, storages);
    if (!reused) reused = in_place(rule.else_takes, id, i, strides, position, storages);
    if (!reused) reused = in_place_of_parts(rule.takes_whole_of, id, position, storages);
    places_[output.at()] = reused ? *reused : place_new(output, strides);
    step.outputs.push_back(operand_of(output));
  }
  step.index = kernel.rules.output(0).is_sum_of_inputs ? skipped_without(node, storages) : -1;
  program_.steps.push_back(std::move(step));
}

Shape Emitter::output_strides(OutputLayout layout, const Node& node, ValueId output,
                              std::span<const Storage> inputs) const {
  const Shape& shape = graph_.type(output).shape;
  // Kernels of images alone write channels-last by themselves; what lies so keeps it.
  if (shape.size() != 4 && !(has_channels(shape) && layout == OutputLayout::kFollowsInput))
    return row_major_strides(shape);
  switch (layout) {
    case OutputLayout::kChannelsLast: return channels_last_strides(shape);
    case OutputLayout::kHeadsLast: return heads_last_strides(shape);
    case OutputLayout::kFollowsInput:
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (!node.inputs[i] || !(graph_.type(node.inputs[i]).shape == shape)) continue;
        if (layout_of(shape, inputs[i].strides) == Layout::kChannelsLast) return channels_last_strides(shape);
        break;
      }
      break;
    case OutputLayout::kRowMajor:
    case OutputLayout::kAsAsked: break;
  }
  return row_major_strides(shape);
}

// A sum onto which an incoming gradient is added in place is what it is where the caller sends none: the number of that
// gradient, or -1. (The loss is all that most training steps go back from; the logits' gradient would be their size.)
int32_t Emitter::skipped_without(const Node& node, std::span<const Storage> inputs) const {
  if (!node.outputs[0]) return -1;
  for (const size_t k : {size_t{0}, size_t{1}}) {
    const ProgramBuffer& incoming = program_.buffers[static_cast<size_t>(inputs[k].buffer)];
    if (incoming.kind != BufferKind::kCaller || incoming.source >= 0) continue;
    const Storage &other = inputs[1 - k], &result = *places_[node.outputs[0].at()];
    if (other.buffer == result.buffer && other.offset == result.offset && other.strides == result.strides)
      return static_cast<int32_t>(-1 - incoming.source);
  }
  return -1;
}

}  // namespace lowtide
