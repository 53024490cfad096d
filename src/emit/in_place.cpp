// Emitter: results that take over the bytes of what nobody reads any more.
#include "emit/emitter.h"
#include "ops/packed_heads.h"

namespace lowtide {

bool Emitter::could_lie_in(ValueId input, ValueId output, const Shape& strides, const Storage& storage) const {
  const TensorType &from = graph_.type(input), &to = graph_.type(output);
  const size_t buffer = static_cast<size_t>(storage.buffer);
  if (program_.buffers[buffer].kind != BufferKind::kArena || claimed_[buffer]) return false;
  if (kind_of(output) != BufferKind::kArena) return false;
  if (size_bytes(from.dtype) != size_bytes(to.dtype) || !(from.shape == to.shape)) return false;
  if (!storage.offset.is(0) || !(storage.strides == strides)) return false;
  return buffer_numel_[buffer] == numel(to.shape);
}

// Output `index` may take over the bytes of an input that nobody reads afterwards.
std::optional<Storage> Emitter::in_place(int input_index, NodeId id, size_t index, const Shape& strides,
                                         int32_t position, std::span<const Storage> inputs) {
  if (input_index < 0) return std::nullopt;
  const Node& node = graph_.node(id);
  const size_t source = static_cast<size_t>(input_index);
  if (source >= node.inputs.size() || !node.inputs[source]) return std::nullopt;
  const ValueId input = node.inputs[source], output = node.outputs[index];
  const TensorType& from = graph_.type(input);
  const Storage& storage = inputs[source];
  if (!could_lie_in(input, output, strides, storage)) return std::nullopt;
  may_take_[output.at()].push_back(input);
  if (lifetimes_.of(input).last != position) return std::nullopt;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i == source || !node.inputs[i] || inputs[i].buffer != storage.buffer) continue;
    const bool same = inputs[i].offset == storage.offset && inputs[i].strides == storage.strides &&
                      graph_.type(node.inputs[i]).shape == from.shape;
    if (!same) return std::nullopt;
  }
  // Another output of this node may have taken the bytes already.
  for (size_t i = 0; i < index; ++i)
    if (node.outputs[i] && places_[node.outputs[i].at()]->buffer == storage.buffer) return std::nullopt;
  return storage;
}

// The first output, packed, may take over the bytes that the inputs from `first` on are its parts of.
std::optional<Storage> Emitter::in_place_of_parts(int first, NodeId id, int32_t position,
                                                  std::span<const Storage> inputs) {
  const Node& node = graph_.node(id);
  if (first < 0 || !node.attrs.has("packed")) return std::nullopt;
  const ValueId output = node.outputs[0];
  const TensorType& to = graph_.type(output);
  const std::array<Strided, 3> parts = parts_of_packed_heads(to.shape, node.attrs.i("packed"));
  const size_t begin = static_cast<size_t>(first), end = begin + parts.size();
  const int32_t buffer = inputs[begin].buffer;
  const size_t at = static_cast<size_t>(buffer);
  for (size_t i = begin; i < end; ++i) {
    const Strided& part = parts[i - begin];
    if (inputs[i].buffer != buffer || !(inputs[i].offset == part.offset)) return std::nullopt;
    if (!same_strides(graph_.type(node.inputs[i]).shape, inputs[i].strides, part.strides)) return std::nullopt;
  }
  if (program_.buffers[at].kind != BufferKind::kArena || claimed_[at]) return std::nullopt;
  if (kind_of(output) != BufferKind::kArena || !(buffer_numel_[at] == numel(to.shape))) return std::nullopt;
  may_take_[output.at()].push_back(node.inputs[begin]);
  for (size_t i = begin; i < end; ++i)
    if (lifetimes_.of(node.inputs[i]).last != position) return std::nullopt;
  for (size_t i = 0; i < inputs.size(); ++i)
    if ((i < begin || i >= end) && node.inputs[i] && inputs[i].buffer == buffer) return std::nullopt;
  return Storage{buffer, 0, row_major_strides(to.shape)};
}

}  // namespace lowtide
