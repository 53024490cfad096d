// Emitter: gradients, module outputs, updates, lifetimes.

#include <algorithm>
#include <numeric>
#include <set>

#include "base/check.h"
#include "emit/emitter.h"

namespace lowtide {

void Emitter::emit_ready_gradients(NodeId id) {
  for (ValueId output : graph_.node(id).outputs) {
    if (!output) continue;
    auto at = gradients_of_.find(output.index);
    if (at == gradients_of_.end()) continue;
    const int32_t buffer = places_[output.at()]->buffer;
    for (size_t index : at->second) {
      if (begun_.count(buffer) > 0) {
        gradients_to_come_[buffer].push_back(index);
      } else {
        emit_gradient(index);
      }
    }
  }
}

// A gradient has a buffer of its own, with the parameter's strides: PyTorch keeps it and accumulates into it.
void Emitter::emit_gradient(size_t output_index) {
  const GraphOutput& output = graph_.outputs()[output_index];
  const TensorType& type = graph_.type(output.value);
  const GraphInput* target = graph_.find_input(output.target);
  LT_CHECK(target != nullptr, "gradient of something that is no input");
  const Shape strides = target->strides.empty() || !is_dense(type.shape, target->strides)
                            ? row_major_strides(type.shape)
                            : target->strides;
  Storage storage = *places_[output.value.at()];
  const size_t buffer = static_cast<size_t>(storage.buffer);
  const bool own = program_.buffers[buffer].kind == BufferKind::kArena && !claimed_[buffer] && storage.offset.is(0) &&
                   buffer_numel_[buffer] == numel(type.shape) && storage.strides == strides;
  if (!own) {
    storage = emit_copy(type, storage, strides, BufferKind::kArena, graph_.value(output.value).name + ".gradient",
                        "the gradient of " + graph_.value(output.target).name);
  }
  program_.buffers[static_cast<size_t>(storage.buffer)].kind = BufferKind::kGradient;
  claimed_[static_cast<size_t>(storage.buffer)] = true;
  const int32_t operand = add_operand(type, storage);
  ProgramStep step;
  step.kind = StepKind::kEmit;
  step.index = static_cast<int32_t>(program_.gradients.size());
  step.inputs = {operand};
  step.node = "gradient of " + graph_.value(output.target).name;
  program_.steps.push_back(std::move(step));
  program_.gradients.push_back(operand);
  program_.gradient_targets.push_back(static_cast<int32_t>(graph_.value(output.target).output_index));
}

// As their targets are: every plan of a graph returns the same list, whatever order it computes them in.
void Emitter::number_gradients() {
  const size_t count = program_.gradients.size();
  std::vector<size_t> by_target(count);
  std::iota(by_target.begin(), by_target.end(), size_t{0});
  std::stable_sort(by_target.begin(), by_target.end(),
                   [&](size_t a, size_t b) { return program_.gradient_targets[a] < program_.gradient_targets[b]; });
  const std::vector<int32_t> gradients = program_.gradients, targets = program_.gradient_targets;
  std::vector<int32_t> number(count);
  for (size_t i = 0; i < count; ++i) {
    program_.gradients[i] = gradients[by_target[i]];
    program_.gradient_targets[i] = targets[by_target[i]];
    number[by_target[i]] = static_cast<int32_t>(i);
  }
  for (ProgramStep& step : program_.steps)
    if (step.kind == StepKind::kEmit) step.index = number[static_cast<size_t>(step.index)];
}

void Emitter::keep_what_updates_overwrite(NodeId yield) {
  std::set<int32_t> read;  // buffers
  const auto note = [&](ValueId value) {
    if (value && places_[value.at()]) read.insert(places_[value.at()]->buffer);
  };
  const std::vector<NodeId>& order = graph_.order();
  for (auto at = yield ? std::find(order.begin(), order.end(), yield) : order.end(); at != order.end(); ++at)
    for (ValueId input : graph_.node(*at).inputs) note(input);
  std::set<int32_t> shown;
  for (ValueId value : module_outputs(graph_))
    if (places_[value.at()]) shown.insert(places_[value.at()]->buffer);
  read.insert(shown.begin(), shown.end());
  for (const GraphOutput& output : graph_.outputs())
    if (output.kind == OutputKind::kUpdate && output.value != output.target) note(output.value);
  for (const GraphOutput& output : graph_.outputs()) {
    if (output.kind != OutputKind::kUpdate || output.value == output.target) continue;
    const int32_t buffer = places_[output.target.at()]->buffer;
    if (!read.contains(buffer) || program_.buffers[static_cast<size_t>(buffer)].kind != BufferKind::kCaller) continue;
    const TensorType all{graph_.type(output.target).dtype, {buffer_numel_[static_cast<size_t>(buffer)]}};
    const std::string& name = graph_.value(output.target).name;
    const Storage copy =
        emit_copy(all, {buffer, 0, {1}}, {1}, shown.contains(buffer) ? BufferKind::kOutput : BufferKind::kArena,
                  name + ".before", "what is read of " + name + " after its update");
    for (std::optional<Storage>& place : places_)
      if (place && place->buffer == buffer) place->buffer = copy.buffer;
  }
}

// Whether kernels have put a value's channels last, which in PyTorch lies row by row: where nobody gave images so, and
// no view turns it.
bool Emitter::is_turned_by_kernels(ValueId value) const {
  const auto lies_channels_last = [](const Shape& shape, const Shape& strides) {
    return !strides.empty() && layout_of(shape, strides) == Layout::kChannelsLast;
  };
  if (!lies_channels_last(graph_.type(value).shape, places_[value.at()]->strides)) return false;
  for (const GraphInput& input : graph_.inputs())
    if (lies_channels_last(graph_.type(input.value).shape, input.strides)) return false;
  for (NodeId maker = graph_.value(value).producer; maker; maker = graph_.value(value).producer) {
    const Node& node = graph_.node(maker);
    if (!is_view(node.op)) return true;
    value = node.inputs[0];
    const std::optional<Storage> of_rows =
        view_storage(graph_, node, {0, 0, row_major_strides(graph_.type(value).shape)});
    const Shape& shown = graph_.type(node.outputs[0]).shape;
    if (!of_rows || !same_strides(shown, of_rows->strides, row_major_strides(shown))) return false;
  }
  return false;
}

void Emitter::finish_outputs() {
  const auto is_output = [&](int32_t buffer) {
    return std::any_of(program_.outputs.begin(), program_.outputs.end(), [&](const ProgramOutput& output) {
      return program_.operands[static_cast<size_t>(output.operand)].buffer == buffer;
    });
  };
  std::map<ValueId, Storage> turned;  // copies, one for a value that is returned twice
  for (ValueId value : module_outputs(graph_)) {
    Storage storage = *places_[value.at()];
    const TensorType& type = graph_.type(value);
    const BufferKind kind = program_.buffers[static_cast<size_t>(storage.buffer)].kind;
    const bool is_turned = kind == BufferKind::kOutput && is_turned_by_kernels(value);
    if (const auto at = turned.find(value); at != turned.end()) {
      storage = at->second;
    } else if (kind == BufferKind::kConstant || kind == BufferKind::kArena || is_turned) {
      // These are copied out. (An arena buffer here is a copy that a kernel asked for: never an output itself.)
      LT_CHECK(kind != BufferKind::kArena, "output %", graph_.value(value).name, " lies in the arena");
      const size_t steps = program_.steps.size();
      storage = emit_copy(type, storage, row_major_strides(type.shape), BufferKind::kOutput, graph_.value(value).name,
                          is_turned ? "rows of an output" : "a constant output");
      if (is_turned) turned.emplace(value, storage);
      // The copy belongs at the end of forward.
      std::rotate(program_.steps.begin() + forward_end(program_),
                  program_.steps.begin() + static_cast<std::ptrdiff_t>(steps), program_.steps.end());
      const int32_t last =
          forward_end(program_) > 0 ? step_positions_[static_cast<size_t>(forward_end(program_)) - 1] : 0;
      step_positions_.insert(step_positions_.begin() + forward_end(program_), last);
      for (ProgramRegion& region : program_.regions) {
        if (&region != &program_.regions.front()) ++region.first;
        ++region.end;
      }
      for (ValuePlace& place : value_places_) place.step += place.region > 0 ? 1 : 0;
    }
    program_.outputs.push_back({graph_.value(value).name, add_operand(type, storage), false});
  }
  for (const auto& [value, copy] : turned)
    if (const int32_t buffer = places_[value.at()]->buffer; !is_output(buffer))
      program_.buffers[static_cast<size_t>(buffer)].kind = BufferKind::kArena;
  for (const GraphOutput& output : graph_.outputs()) {
    if (output.kind != OutputKind::kUpdate) continue;
    program_.updates.push_back(
        {operand_of(output.value), static_cast<int32_t>(graph_.value(output.target).output_index)});
  }
}

void Emitter::finish_lifetimes() {
  set_lifetimes(program_);
  const bool has_backward = graph_.yield().valid();
  for (const ProgramBuffer& buffer : program_.buffers) {
    const bool read_in_backward = has_backward && buffer.last >= forward_end(program_);
    if (buffer.kind == BufferKind::kCaller && buffer.source >= 0)
      program_.inputs[static_cast<size_t>(buffer.source)].saved = read_in_backward;
  }
  for (ProgramOutput& output : program_.outputs) {
    const ProgramBuffer& buffer =
        program_.buffers[static_cast<size_t>(program_.operands[static_cast<size_t>(output.operand)].buffer)];
    output.saved = buffer.kind == BufferKind::kOutput && has_backward && buffer.last >= forward_end(program_);
  }
}

}  // namespace lowtide
