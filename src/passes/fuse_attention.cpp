#include "passes/fuse_attention.h"

#include <algorithm>

#include "ops/rule.h"
#include "passes/pattern.h"

namespace lowtide {

namespace {

struct Match {
  explicit Match(const Graph& graph) : pattern(graph, true) {}
  Pattern pattern;
  NodeId root;    // the product with the values
  NodeId scores;  // the product of queries and keys
  double scale = 1, dropout = 0;
  Dim stream = 0;
  Shape shape;  // [B, H, S, T]
  std::vector<ValueId> biases;
};

const Shape& shape_of(const Graph& graph, ValueId value) { return graph.type(value).shape; }

// Whether `value`'s shape and [B, H, S, T] are the same but for B and H in one dim.
bool is_flat(const Shape& shape, const Shape& full) {
  return shape.size() == 3 && shape[0] == full[0] * full[1] && shape[1] == full[2] && shape[2] == full[3];
}

// Goes through a Reshape between the two shapes of scores.
ValueId through_reshape(const Graph& graph, Match& match, ValueId value) {
  const NodeId reshape = producer(graph, value, Op::kReshape, true);
  if (!reshape) return value;
  const ValueId x = operand(graph, reshape, 0);
  const Shape &from = shape_of(graph, x), &to = shape_of(graph, value);
  if (from.size() == 4 && is_flat(to, from)) {
    match.shape = from;
  } else if (to.size() != 4 || !is_flat(from, to)) {
    return value;
  } else {
    match.shape = to;
  }
  match.pattern.add(reshape);
  return x;
}

// Goes through Reshapes between the two shapes of scores, and through Casts `from` one dtype `to` another.
ValueId through_views(const Graph& graph, Match& match, ValueId value, DType from, DType to) {
  while (true) {
    const ValueId reshaped = through_reshape(graph, match, value);
    const NodeId cast = producer(graph, reshaped, Op::kCast, true);
    const bool casts = cast && graph.type(reshaped).dtype == to && graph.type(operand(graph, cast, 0)).dtype == from;
    if (casts) match.pattern.add(cast);
    const ValueId next = casts ? operand(graph, cast, 0) : reshaped;
    if (next == value) return value;
    value = next;
  }
}

// softmax(scores), perhaps with dropout, from the left operand of the last product. Of products of 16 bits it may be
// computed in f32.
bool match_probabilities(const Graph& graph, Match& match, ValueId value) {
  const DType dtype = graph.type(value).dtype, wide = is_half(dtype) ? DType::kF32 : dtype;
  value = through_views(graph, match, value, wide, dtype);
  if (const NodeId dropout = match.pattern.take(value, Op::kDropout)) {
    if (graph.node(dropout).inputs.size() > 1) return false;  // the masks of some rows of a tensor
    match.dropout = graph.node(dropout).attrs.f("ratio");
    match.stream = graph.node(dropout).attrs.dim("stream");
    value = through_views(graph, match, operand(graph, dropout, 0), wide, dtype);
  }
  const NodeId softmax = match.pattern.take(value, Op::kSoftmax);
  if (!softmax) return false;
  const auto rank = static_cast<int64_t>(shape_of(graph, value).size());
  if (!graph.node(softmax).attrs.dim("axis").is(rank - 1)) return false;
  // Biases, outermost first, down to the product.
  ValueId scores = operand(graph, softmax, 0);
  while (true) {
    scores = through_views(graph, match, scores, dtype, wide);
    if (const NodeId product = producer(graph, scores, {Op::kMatMul, Op::kFusedMatMul}, true)) {
      match.pattern.add(product);
      match.scores = product;
      return true;
    }
    const NodeId sum = producer(graph, scores, Op::kAdd, true);
    if (!sum) return false;
    match.pattern.add(sum);
    // The side that has the scores' shape and leads to a product; a bias of that shape comes from elsewhere.
    const ValueId sides[2] = {operand(graph, sum, 0), operand(graph, sum, 1)};
    const auto leads_on = [&](ValueId side) {
      return shape_of(graph, side) == shape_of(graph, scores) &&
             producer(graph, side, {Op::kAdd, Op::kReshape, Op::kCast, Op::kMatMul, Op::kFusedMatMul}, true);
    };
    const size_t at = leads_on(sides[0]) ? 0 : 1;
    if (!leads_on(sides[at]) || (at == 0 && leads_on(sides[1]))) return false;
    match.biases.push_back(sides[1 - at]);
    scores = sides[at];
  }
}

// `value` as [B, H, ..] if it is that or [B*H, ..].
ValueId with_heads(Builder& b, ValueId value, const Shape& full) {
  Shape shape = b.shape(value);
  if (shape.size() == 4) return value;
  shape.erase(shape.begin());
  shape.insert(shape.begin(), {full[0], full[1]});
  return b.reshape(value, std::move(shape));
}

// A bias of either form of scores as one of four dims.
ValueId bias_with_heads(Builder& b, ValueId bias, const Shape& full) {
  const Shape& shape = b.shape(bias);
  if (shape.size() == 3 && !shape[0].is(1) && shape[0] == full[0] * full[1]) return with_heads(b, bias, full);
  std::vector<int64_t> axes;
  for (size_t i = shape.size(); i < full.size(); ++i) axes.push_back(static_cast<int64_t>(axes.size()));
  return b.unsqueeze(bias, std::move(axes));
}

bool broadcasts(const Shape& bias, const Shape& full) {
  if (bias.size() > full.size()) return false;
  for (size_t i = 0; i < bias.size(); ++i) {
    const Dim& size = bias[bias.size() - 1 - i];
    if (!size.is(1) && size != full[full.size() - 1 - i]) return false;
  }
  return true;
}

bool fuse_attention_at(Graph& graph, NodeId root) {
  Match match(graph);
  match.root = root;
  match.pattern.add(root);
  const Attrs& attrs = graph.node(root).attrs;
  if (graph.node(root).op == Op::kFusedMatMul && (attrs.b("transA") || attrs.b("transB") || attrs.f("alpha") != 1))
    return false;
  if (!match_probabilities(graph, match, operand(graph, root, 0))) return false;
  const ValueId scores = graph.node(match.scores).outputs[0];
  if (match.shape.empty() && shape_of(graph, scores).size() == 4) match.shape = shape_of(graph, scores);
  const Shape full = match.shape;
  if (full.size() != 4 || !match.pattern.is_closed(root)) return false;
  ValueId query = operand(graph, match.scores, 0), key = operand(graph, match.scores, 1);
  ValueId value = operand(graph, root, 1);
  // Batches that broadcast are no attention; neither is a transposed query.
  for (ValueId tensor : {query, key, value}) {
    const Shape& shape = shape_of(graph, tensor);
    const bool batches = shape.size() == 4 ? shape[0] == full[0] && shape[1] == full[1]
                                           : shape.size() == 3 && shape[0] == full[0] * full[1];
    if (!batches || graph.type(tensor).dtype != graph.type(scores).dtype) return false;
  }
  bool key_is_transposed = true;
  if (graph.node(match.scores).op == Op::kFusedMatMul) {
    const Attrs& product = graph.node(match.scores).attrs;
    if (product.b("transA")) return false;
    key_is_transposed = !product.b("transB");
    match.scale = product.f("alpha");
  }
  // What is added to scores of 16 bits may be f32, all of it then.
  DType added = graph.type(scores).dtype;
  for (ValueId bias : match.biases) {
    const Shape& shape = shape_of(graph, bias);
    const bool flat = shape.size() == 3 && !shape[0].is(1) && shape[0] == full[0] * full[1];
    Shape last_two = shape;
    if (shape.size() > 2) last_two.erase(last_two.begin(), last_two.end() - 2);
    if (!(flat ? broadcasts(last_two, full) : broadcasts(shape, full))) return false;
    const DType dtype = graph.type(bias).dtype;
    if (dtype == graph.type(query).dtype) continue;
    if (dtype != DType::kF32 || !is_half(graph.type(query).dtype)) return false;
    added = dtype;
  }

  const Origin origin = match.pattern.origin(root);
  // The views and sums around the attention absorb nothing.
  Origin around = origin;
  around.note.clear();
  Builder b = before(graph, root);
  b.set_origin(around);
  if (key_is_transposed) {
    const auto rank = static_cast<int64_t>(b.rank(key));
    key = b.swap_axes(key, rank - 2, rank - 1);
  }
  std::vector<ValueId> operands;
  for (ValueId tensor : {query, key, value}) operands.push_back(with_heads(b, tensor, full));
  ValueId mask;
  for (ValueId bias : match.biases) {
    const ValueId piece = b.cast(bias_with_heads(b, bias, full), added);
    mask = mask ? b.add(piece, mask) : piece;
  }
  if (mask) operands.push_back(mask);
  b.set_origin(origin);
  const ValueId y =
      b.op(Op::kAttention, std::move(operands),
           {{"is_causal", false}, {"scale", match.scale}, {"dropout", match.dropout}, {"stream", match.stream}});
  b.set_origin(around);
  // Behind the root, as all that reads the attention.
  const auto at = std::find(graph.order().begin(), graph.order().end(), root);
  b.insert_before(at + 1 == graph.order().end() ? NodeId{} : *(at + 1));
  const ValueId result = graph.node(root).outputs[0];
  graph.replace_uses(result, b.reshape(y, shape_of(graph, result)));
  match.pattern.keep_inspected(graph, root, y);
  return true;
}

}  // namespace

bool fuse_attention(Graph& graph) {
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    const Op op = graph.node(id).op;
    if (op == Op::kMatMul || op == Op::kFusedMatMul) changed = fuse_attention_at(graph, id) || changed;
  }
  return changed;
}

}  // namespace lowtide
