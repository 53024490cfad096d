#include "passes/fuse_rotary.h"

#include "ops/rule.h"
#include "passes/pattern.h"

namespace lowtide {

namespace {

// `value` as columns start, start + step, … below end of `base`.
struct Columns {
  ValueId base;
  Dim start, end, step;
};

Columns columns(const Graph& graph, ValueId value) {
  const Shape& shape = graph.type(value).shape;
  const NodeId slice = producer(graph, value, Op::kSlice);
  if (slice) {
    const Attrs& attrs = graph.node(slice).attrs;
    if (attrs.dim("axis").is(static_cast<int64_t>(shape.size()) - 1))
      return {operand(graph, slice, 0), attrs.dim("start"), attrs.dim("end"), attrs.dim("step")};
  }
  return {value, 0, shape.back(), 1};
}

// What `value` is a cast of, to more bytes; else itself.
ValueId before_widening(const Graph& graph, ValueId value) {
  const NodeId cast = producer(graph, value, Op::kCast);
  if (!cast) return value;
  const ValueId x = operand(graph, cast, 0);
  const DType from = graph.type(x).dtype, to = graph.type(value).dtype;
  return is_float(from) && is_float(to) && size_bytes(from) < size_bytes(to) ? x : value;
}

// The operand of an Unsqueeze that adds a last dim; none for another value.
ValueId without_last_dim(const Graph& graph, Pattern& pattern, ValueId value) {
  const int64_t axis = static_cast<int64_t>(graph.type(value).shape.size()) - 1;
  const NodeId unsqueeze = producer(graph, value, Op::kUnsqueeze);
  if (!unsqueeze || graph.node(unsqueeze).attrs.ints("axes") != std::vector<Dim>{Dim(axis)}) return {};
  pattern.add(unsqueeze);
  return operand(graph, unsqueeze, 0);
}

// Two values of one shape, stacked along a new last dim.
struct Stacked {
  ValueId first, second;
};

Stacked stacked(const Graph& graph, Pattern& pattern, NodeId concat) {
  const Node& node = graph.node(concat);
  const int64_t rank = static_cast<int64_t>(graph.type(node.outputs[0]).shape.size());
  if (node.inputs.size() != 2 || !node.attrs.dim("axis").is(rank - 1)) return {};
  pattern.add(concat);
  return {without_last_dim(graph, pattern, node.inputs[0]), without_last_dim(graph, pattern, node.inputs[1])};
}

// Whether `high` and `low` are the columns x2 and x1 of x = (x1, x2), which are halves or, interleaved, neighbours.
bool are_parts(const Graph& graph, ValueId high_part, ValueId low_part, ValueId x, bool interleaved) {
  const Columns high = columns(graph, high_part), low = columns(graph, low_part);
  // Strided slices are of x itself, others of what x is a slice of.
  const Columns whole = high.base == x ? Columns{x, 0, graph.type(x).shape.back(), 1} : columns(graph, x);
  if (high.base != whole.base || low.base != whole.base || !whole.step.is(1)) return false;
  if (interleaved)
    return high.step.is(2) && low.step.is(2) && low.start == whole.start && high.start == whole.start + 1 &&
           high.end == whole.end && (low.end == whole.end || low.end == whole.end - 1);
  // A half as long as the whole would be the whole.
  return high.step.is(1) && low.step.is(1) && low.start == whole.start &&
         low.end == whole.start + floordiv(graph.type(x).shape.back(), 2) && high.start == low.end &&
         high.end == whole.end;
}

enum class Rotated { kNo, kHalves, kNeighbours };

// Whether `rotated` is concat(-x2, x1) of the last dim, or the two interleaved.
Rotated how_rotated(const Graph& graph, Pattern& pattern, ValueId rotated, ValueId x) {
  // Each cast by itself, as autocast does with tables in f32: halves and signs are the same before and after.
  if (const ValueId narrow = before_widening(graph, rotated); narrow != rotated && before_widening(graph, x) != x) {
    pattern.add(graph.value(rotated).producer);
    rotated = narrow;
    x = before_widening(graph, x);
  }
  const Shape& shape = graph.type(x).shape;
  if (shape.empty()) return Rotated::kNo;
  Stacked parts;
  const NodeId reshape = producer(graph, rotated, Op::kReshape);
  if (reshape) {
    const NodeId concat = producer(graph, operand(graph, reshape, 0), Op::kConcat);
    if (!concat || graph.type(rotated).shape != shape) return Rotated::kNo;
    pattern.add(reshape);
    parts = stacked(graph, pattern, concat);
  } else if (const NodeId concat = producer(graph, rotated, Op::kConcat)) {
    const Node& node = graph.node(concat);
    if (node.inputs.size() != 2 || !node.attrs.dim("axis").is(static_cast<int64_t>(shape.size()) - 1))
      return Rotated::kNo;
    pattern.add(concat);
    parts = {node.inputs[0], node.inputs[1]};
  }
  if (!parts.first || !parts.second) return Rotated::kNo;
  const NodeId negated = producer(graph, parts.first, Op::kNeg);
  if (!negated || !are_parts(graph, operand(graph, negated, 0), parts.second, x, reshape.valid())) return Rotated::kNo;
  pattern.add(negated);
  return reshape ? Rotated::kNeighbours : Rotated::kHalves;
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
    const Rotated rotated = how_rotated(graph, pattern, operand(graph, turned, rotated_at), x);
    if (rotated == Rotated::kNo || !pattern.is_closed(root)) continue;
    Builder b = before(graph, root);
    b.set_origin(pattern.origin(root));
    Attrs attrs;
    if (rotated == Rotated::kNeighbours) attrs.set("interleaved", true);
    graph.replace_uses(graph.node(root).outputs[0], b.op(Op::kRotaryEmbedding, {x, cos, sin}, std::move(attrs)));
    return true;
  }
  return false;
}

// What a product has beside `factor`; none if it has no such factor.
ValueId other_factor(const Graph& graph, NodeId product, ValueId factor) {
  for (size_t i : {0, 1})
    if (operand(graph, product, i) == factor) return operand(graph, product, 1 - i);
  return {};
}

// `value` as element `index` of pairs along the last dim: the pairs.
ValueId pairs_of(const Graph& graph, ValueId value, int64_t index) {
  const NodeId squeeze = producer(graph, value, Op::kSqueeze);
  if (!squeeze) return {};
  const ValueId column = operand(graph, squeeze, 0);
  const int64_t axis = static_cast<int64_t>(graph.type(column).shape.size()) - 1;
  if (graph.node(squeeze).attrs.ints("axes") != std::vector<Dim>{Dim(axis)}) return {};
  const Columns found = columns(graph, column);
  const bool fits = found.start.is(index) && found.end.is(index + 1) && graph.type(found.base).shape.back().is(2);
  return fits ? found.base : ValueId{};
}

// stack(a*cos - b*sin, a*sin + b*cos) of pairs (a, b).
bool fuse_complex_product_at(Graph& graph, NodeId root) {
  Pattern pattern(graph);
  const Stacked parts = stacked(graph, pattern, root);
  if (!parts.first || !parts.second) return false;
  const NodeId real = pattern.take(parts.first, Op::kSub), imaginary = pattern.take(parts.second, Op::kAdd);
  if (!real || !imaginary) return false;
  const NodeId a_cos = pattern.take(operand(graph, real, 0), Op::kMul);
  const NodeId b_sin = pattern.take(operand(graph, real, 1), Op::kMul);
  const NodeId sums[2] = {pattern.take(operand(graph, imaginary, 0), Op::kMul),
                          pattern.take(operand(graph, imaginary, 1), Op::kMul)};
  if (!a_cos || !b_sin || !sums[0] || !sums[1] || !pattern.is_closed(root)) return false;
  for (size_t i : {0, 1}) {
    const ValueId a = operand(graph, a_cos, i), cos = operand(graph, a_cos, 1 - i);
    const ValueId pairs = pairs_of(graph, a, 0);
    if (!pairs || !is_float(graph.type(pairs).dtype)) continue;
    for (size_t j : {0, 1}) {
      const ValueId b = operand(graph, b_sin, j), sin = operand(graph, b_sin, 1 - j);
      if (pairs_of(graph, b, 1) != pairs) continue;
      const bool turns = (other_factor(graph, sums[0], a) == sin && other_factor(graph, sums[1], b) == cos) ||
                         (other_factor(graph, sums[1], a) == sin && other_factor(graph, sums[0], b) == cos);
      const Shape shape = graph.type(pairs).shape;
      const Dim count = graph.type(a).shape.back();
      const auto is_table = [&](ValueId table) {
        const Shape& sizes = graph.type(table).shape;
        return !sizes.empty() && sizes.back() == count;
      };
      // The tables may be of more rows than the pairs.
      if (!turns || !is_table(cos) || !is_table(sin) || graph.type(graph.node(root).outputs[0]).shape != shape)
        continue;
      Builder builder = before(graph, root);
      builder.set_origin(pattern.origin(root));
      const auto twice = [&](ValueId table) {
        const int64_t axis = builder.rank(table) - 1;
        return builder.op(Op::kRepeatInterleave, {table}, {{"axis", Dim(axis)}, {"repeats", Dim(2)}});
      };
      Shape row(shape.begin(), shape.end() - 1);
      row.back() = count * 2;
      const ValueId turned = builder.op(Op::kRotaryEmbedding, {builder.reshape(pairs, row), twice(cos), twice(sin)},
                                        {{"interleaved", true}});
      graph.replace_uses(graph.node(root).outputs[0], builder.reshape(turned, shape));
      return true;
    }
  }
  return false;
}

}  // namespace

bool fuse_rotary(Graph& graph) {
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    if (graph.node(id).op == Op::kAdd) changed = fuse_rotary_at(graph, id) || changed;
    if (graph.node(id).op == Op::kConcat) changed = fuse_complex_product_at(graph, id) || changed;
  }
  return changed;
}

}  // namespace lowtide
