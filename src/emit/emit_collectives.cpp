// Emitter: what processes do together, and what a plan has room for meanwhile.

#include <algorithm>

#include "emit/emitter.h"

namespace lowtide {

// Of one process's part, where steps wait for all of it: a reduction goes by so much at a time.
static constexpr int64_t kSliceBytes = int64_t{1} << 18;

static bool parts_lie_one_after_another(const Shape& shape, int64_t axis) {
  return std::all_of(shape.begin(), shape.begin() + axis, [](const Dim& dim) { return dim.is(1); });
}

// Elements of what other processes send to be added up, or of parts that travel in an order of their own; see
// python/lowtide/distributed/collectives.py.
static Dim room_for(const Graph& graph, const Node& node, bool goes_on) {
  if (is_gather(node.op)) return 0;
  const Dim others = node.attrs.i("ranks") - 1;
  const TensorType& result = graph.type(node.outputs[0]);
  const Dim part = numel(result.shape);
  if (is_reduction(node.op)) {
    const int64_t slice = kSliceBytes / size_bytes(result.dtype);
    return others * (part.is_constant() && !goes_on ? Dim(std::min(part.constant(), slice)) : part);
  }
  const std::string& kind = node.attrs.s("kind");
  const Shape& shape = graph.type(node.inputs[0]).shape;
  const bool lies_so = parts_lie_one_after_another(shape, node.attrs.i("axis"));
  if (kind == "scatter") return others * part * (lies_so ? 1 : 2);
  if (kind == "gather" && !lies_so) return others * numel(shape);
  return 0;
}

// A gather goes on until somebody reads what it makes, a reduction until a node that the options tell, if they do.
void Emitter::emit_collective(NodeId id) {
  const Node& node = graph_.node(id);
  const auto late = std::find_if(options_.late_waits.begin(), options_.late_waits.end(),
                                 [&](const LateWait& each) { return each.reduction == id; });
  const bool is_late = late != options_.late_waits.end();
  const bool goes_on = is_gather(node.op) || is_late;
  ProgramStep step;
  step.kind = goes_on ? StepKind::kBegin : StepKind::kHostCall;
  step.target = name(node.op);
  step.attrs = program_attrs(node.attrs);
  step.node = describe(graph_, id);
  const ValueId input = node.inputs[0], output = node.outputs[0];
  step.inputs = {add_operand(graph_.type(input), comply(input, Accept::kRowMajor, false, step.node))};
  places_[output.at()] = place_new(output, row_major_strides(graph_.type(output).shape));
  step.outputs = {operand_of(output)};
  if (const Dim room = room_for(graph_, node, goes_on); !room.is(0)) {
    const TensorType type{graph_.type(output).dtype, {room}};
    Storage storage;
    storage.buffer = add_buffer(BufferKind::kArena, graph_.value(output).name + ".received", room, type.dtype);
    storage.strides = row_major_strides(type.shape);
    step.outputs.push_back(add_operand(type, storage));
  }
  choices_.push_back({step.node, "python", {}});
  const int32_t buffer = places_[output.at()]->buffer;
  if (goes_on) begun_[buffer] = static_cast<int32_t>(program_.steps.size());
  if (is_late) due_[late->before.index].push_back(buffer);
  program_.steps.push_back(std::move(step));
  if (options_.list_places) wait_for_all();  // somebody looks at each value where it is made
}

void Emitter::wait_for(int32_t buffer) {
  const auto at = begun_.find(buffer);
  if (at == begun_.end()) return;
  ProgramStep step;
  step.kind = StepKind::kWait;
  step.index = at->second;
  step.node = program_.steps[static_cast<size_t>(at->second)].node;
  program_.steps.push_back(std::move(step));
  begun_.erase(at);
  const auto waiting = gradients_to_come_.extract(buffer);
  if (!waiting.empty())
    for (size_t gradient : waiting.mapped()) emit_gradient(gradient);
}

void Emitter::wait_for_due(NodeId next) {
  const auto due = due_.extract(next.index);
  if (!due.empty())
    for (int32_t buffer : due.mapped()) wait_for(buffer);
}

void Emitter::wait_for_all() {
  while (!begun_.empty()) wait_for(begun_.begin()->first);
}

}  // namespace lowtide
