#include <algorithm>
#include <numeric>

#include "passes/fold_rules.h"
#include "passes/rewrite.h"

namespace lowtide {

namespace {

// Reshape of a Reshape, Squeeze or Unsqueeze → Reshape; to x's own shape → x
ValueId fold_reshape(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Shape shape = node.attrs.ints("shape");
  ValueId x = node.inputs[0];
  while (const NodeId inner = producer(graph, x, {Op::kReshape, Op::kSqueeze, Op::kUnsqueeze}))
    x = operand(graph, inner, 0);
  if (graph.type(x).shape == shape) return x;
  if (x == node.inputs[0]) return {};
  return before(graph, id).reshape(x, shape);
}

// Transpose of a Transpose → one; the identity → x
ValueId fold_transpose(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  std::vector<int64_t> perm = node.attrs.is("perm");
  ValueId x = node.inputs[0];
  if (const NodeId inner = producer(graph, x, Op::kTranspose)) {
    const std::vector<int64_t> first = graph.node(inner).attrs.is("perm");
    for (int64_t& axis : perm) axis = first[static_cast<size_t>(axis)];
    x = operand(graph, inner, 0);
  }
  if (std::is_sorted(perm.begin(), perm.end())) return x;
  return x == node.inputs[0] ? ValueId{} : before(graph, id).transpose(x, std::move(perm));
}

// Expand of an Expand → one; to x's own shape → x
ValueId fold_expand(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Shape shape = node.attrs.ints("shape");
  ValueId x = node.inputs[0];
  while (const NodeId inner = producer(graph, x, Op::kExpand)) x = operand(graph, inner, 0);
  if (graph.type(x).shape == shape) return x;
  return x == node.inputs[0] ? ValueId{} : before(graph, id).expand(x, shape);
}

// Slice of everything → x; of a Slice on the same axis → one (steps of 1)
ValueId fold_slice(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const int64_t axis = node.attrs.i("axis");
  const Dim start = node.attrs.dim("start"), end = node.attrs.dim("end"), step = node.attrs.dim("step");
  const ValueId x = node.inputs[0];
  if (start.is(0) && step.is(1) && end == graph.type(x).shape[static_cast<size_t>(axis)]) return x;
  const NodeId inner = producer(graph, x, Op::kSlice);
  if (!inner || !step.is(1)) return {};
  const Attrs& first = graph.node(inner).attrs;
  if (first.i("axis") != axis || !first.dim("step").is(1)) return {};
  const Dim shift = first.dim("start");
  return before(graph, id).slice(operand(graph, inner, 0), axis, shift + start, shift + end);
}

// Unsqueeze of an Unsqueeze → one
ValueId fold_unsqueeze(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const std::vector<int64_t> axes = node.attrs.is("axes");
  if (axes.empty()) return node.inputs[0];
  if (const NodeId inner = producer(graph, node.inputs[0], Op::kSqueeze))
    if (graph.type(operand(graph, inner, 0)).shape == graph.type(node.outputs[0]).shape)
      return operand(graph, inner, 0);
  const NodeId inner = producer(graph, node.inputs[0], Op::kUnsqueeze);
  if (!inner) return {};
  // Where the inner node's dims stand in the result: the positions that `axes` leaves free, in order.
  const size_t rank = graph.type(node.outputs[0]).shape.size();
  std::vector<int64_t> free;
  for (size_t i = 0; i < rank; ++i)
    if (!std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(i))) free.push_back(static_cast<int64_t>(i));
  std::vector<int64_t> merged = axes;
  for (int64_t axis : graph.node(inner).attrs.is("axes")) merged.push_back(free[static_cast<size_t>(axis)]);
  std::sort(merged.begin(), merged.end());
  return before(graph, id).unsqueeze(operand(graph, inner, 0), std::move(merged));
}

// Squeeze that undoes an Unsqueeze → x
ValueId fold_squeeze(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.attrs.ints("axes").empty()) return node.inputs[0];
  const NodeId inner = producer(graph, node.inputs[0], {Op::kUnsqueeze, Op::kReshape});
  if (!inner) return {};
  const ValueId x = operand(graph, inner, 0);
  return graph.type(x).shape == graph.type(node.outputs[0]).shape ? x : ValueId{};
}

}  // namespace

ValueId fold_views(Graph& graph, NodeId id) {
  switch (graph.node(id).op) {
    case Op::kReshape: return fold_reshape(graph, id);
    case Op::kTranspose: return fold_transpose(graph, id);
    case Op::kExpand: return fold_expand(graph, id);
    case Op::kSlice: return fold_slice(graph, id);
    case Op::kUnsqueeze: return fold_unsqueeze(graph, id);
    case Op::kSqueeze: return fold_squeeze(graph, id);
    default: return {};
  }
}

}  // namespace lowtide
