#include "passes/fuse_rotary.h"

#include "ops/rule.h"
#include "passes/pattern.h"

namespace lowtide {

namespace {

// `value` as columns [start, end) of `base`.
struct Columns {
  ValueId base;
  Dim start, end;
};

Columns columns(const Graph& graph, ValueId value) {
  const Shape& shape = graph.type(value).shape;
  const NodeId slice = producer(graph, value, Op::kSlice);
  if (slice) {
    const Attrs& attrs = graph.node(slice).attrs;
    if (attrs.dim("axis").is(static_cast<int64_t>(shape.size()) - 1) && attrs.dim("step").is(1))
      return {operand(graph, slice, 0), attrs.dim("start"), attrs.dim("end")};
  }
  return {value, 0, shape.back()};
}

// What `value` is a cast of, to more bytes; else itself.
ValueId before_widening(const Graph& graph, ValueId value) {
  const NodeId cast = producer(graph, value, Op::kCast);
  if (!cast) return value;
  const ValueId x = operand(graph, cast, 0);
  const DType from = graph.type(x).dtype, to = graph.type(value).dtype;
  return is_float(from) && is_float(to) && size_bytes(from) < size_bytes(to) ? x : value;
}

// Whether `rotated` is concat(-x[E/2:], x[:E/2]) of the last dim.
bool is_rotated_half(const Graph& graph, Pattern& pattern, ValueId rotated, ValueId x) {
  // Each cast by itself, as autocast does with tables in f32: halves and signs are the same before and after.
  if (const ValueId narrow = before_widening(graph, rotated); narrow != rotated && before_widening(graph, x) != x) {
    pattern.add(graph.value(rotated).producer);
    rotated = narrow;
    x = before_widening(graph, x);
  }
  const NodeId concat = producer(graph, rotated, Op::kConcat);
  const Shape& shape = graph.type(x).shape;
  if (!concat || shape.empty() || graph.node(concat).inputs.size() != 2 ||
      !graph.node(concat).attrs.dim("axis").is(static_cast<int64_t>(shape.size()) - 1))
    return false;
  const NodeId negated = producer(graph, operand(graph, concat, 0), Op::kNeg);
  if (!negated) return false;
  const Dim half = floordiv(shape.back(), 2);
  const Columns whole = columns(graph, x);
  const Columns high = columns(graph, operand(graph, negated, 0)), low = columns(graph, operand(graph, concat, 1));
  // A half as long as the whole would be the whole.
  if (high.base != whole.base || low.base != whole.base || low.start != whole.start || low.end != whole.start + half ||
      high.start != low.end || high.end != whole.end)
    return false;
  pattern.add(concat);
  pattern.add(negated);
  return true;
}

bool fuse_rotary_at(Graph& graph, NodeId root) {
  const Shape shape = graph.type(graph.node(root).outputs[0]).shape;
  const NodeId products[2] = {producer(graph, operand(graph, root, 0), Op::kMul),
                              producer(graph, operand(graph, root, 1), Op::kMul)};
  if (!products[0] || !products[1]) return false;
  // x*cos is either product, x either of its factors.
  for (int which = 0; which < 8; ++which) {
    const NodeId straight = products[which & 1], turned = products[1 - (which & 1)];
    const size_t x_at = (which >> 1) & 1, rotated_at = (which >> 2) & 1;
    const ValueId x = operand(graph, straight, x_at), cos = operand(graph, straight, 1 - x_at);
    const ValueId sin = operand(graph, turned, 1 - rotated_at);
    Pattern pattern(graph);
    for (NodeId node : {root, straight, turned}) pattern.add(node);
    if (graph.type(x).shape != shape || !is_float(graph.type(x).dtype)) continue;
    if (!is_rotated_half(graph, pattern, operand(graph, turned, rotated_at), x) || !pattern.is_closed(root)) continue;
    Builder b = before(graph, root);
    b.set_origin(pattern.origin(root));
    graph.replace_uses(graph.node(root).outputs[0], b.op(Op::kRotaryEmbedding, {x, cos, sin}));
    return true;
  }
  return false;
}

}  // namespace

bool fuse_rotary(Graph& graph) {
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order)
    if (graph.node(id).op == Op::kAdd) changed = fuse_rotary_at(graph, id) || changed;
  return changed;
}

}  // namespace lowtide
