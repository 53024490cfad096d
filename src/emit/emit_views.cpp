// Emitter: views, and copies of them.
#include <algorithm>

#include "base/check.h"
#include "emit/emitter.h"
#include "ir/print.h"

namespace lowtide {

void Emitter::emit_view(NodeId id) {
  const Node& node = graph_.node(id);
  const ValueId input = node.inputs[0], output = node.outputs[0];
  if (!output) return;
  const TensorType& input_type = graph_.type(input);
  std::optional<Storage> storage = view_storage(graph_, node, *places_[input.at()]);
  if (!storage) {
    wait_for(places_[input.at()]->buffer);
    const Storage copy = emit_copy(input_type, *places_[input.at()], row_major_strides(input_type.shape),
                                   kind_of(output), graph_.value(output).name, describe(graph_, id));
    copied_for_views_.insert(copy.buffer);
    storage = view_storage(graph_, node, copy);
    LT_CHECK(storage.has_value(), "a row-major copy still cannot be viewed by ", describe(graph_, id));
  }
  places_[output.at()] = std::move(storage);
}

static bool is_copy(const Node& node) {
  return has_trait(node.op, Trait::kFreshBytes) && info(node.op).category == OpCategory::kPointwise;
}

bool Emitter::takes_copy(NodeId id) {
  const Node& node = graph_.node(id);
  if (!is_copy(node) || !node.outputs[0]) return false;
  const ValueId output = node.outputs[0];
  const Storage& storage = *places_[node.inputs[0].at()];
  const size_t buffer = static_cast<size_t>(storage.buffer);
  const Shape& shape = graph_.type(output).shape;
  if (!copied_for_views_.contains(storage.buffer) || program_.buffers[buffer].kind != BufferKind::kArena) return false;
  if (claimed_[buffer] || !storage.offset.is(0) || !(buffer_numel_[buffer] == numel(shape))) return false;
  if (!(storage.strides == row_major_strides(shape))) return false;
  const auto lies_there = [&](ValueId value) {
    return value && places_[value.at()] && places_[value.at()]->buffer == storage.buffer;
  };
  for (const GraphOutput& shown : graph_.outputs())
    if (lies_there(shown.value)) return false;
  for (size_t i = 0; i < places_.size(); ++i) {
    const ValueId value{static_cast<int32_t>(i)};
    if (!lies_there(value)) continue;
    for (NodeId user : graph_.value(value).users)
      if (user != id && !(is_view(graph_.node(user).op) && lies_there(graph_.node(user).outputs[0]))) return false;
  }
  program_.buffers[buffer].kind = kind_of(output);
  places_[output.at()] = storage;
  return true;
}

}  // namespace lowtide
