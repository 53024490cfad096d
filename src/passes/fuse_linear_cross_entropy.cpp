#include "passes/fuse_linear_cross_entropy.h"

#include <algorithm>

#include "passes/pattern.h"

namespace lowtide {

namespace {

// A step from logits to logits of fewer or other rows, whose last dim stays the classes.
bool moves_rows(const Graph& graph, NodeId id, const Dim& classes) {
  const Node& node = graph.node(id);
  const Shape &from = graph.type(node.inputs[0]).shape, &to = graph.type(node.outputs[0]).shape;
  if (from.empty() || to.empty() || from.back() != classes || to.back() != classes) return false;
  return node.op != Op::kSlice || node.attrs.i("axis") + 1 < static_cast<int64_t>(from.size());
}

// The layer below the logits, [.., K] times [C, K] transposed.
struct Layer {
  NodeId product;
  std::vector<NodeId> steps;  // from the loss down to the product
};

Layer match_layer(const Graph& graph, Pattern& pattern, ValueId logits) {
  const Dim classes = graph.type(logits).shape.back();
  Layer layer;
  for (ValueId value = logits;;) {
    if (const NodeId step = producer(graph, value, {Op::kReshape, Op::kSlice, Op::kCopy})) {
      if (!moves_rows(graph, step, classes)) return {};
      pattern.add(step);
      layer.steps.push_back(step);
      value = operand(graph, step, 0);
      continue;
    }
    layer.product = pattern.take(value, {Op::kGemm, Op::kFusedMatMul});
    return layer;
  }
}

bool is_linear(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Attrs& attrs = node.attrs;
  if (attrs.b("transA") || !attrs.b("transB") || attrs.f("alpha") != 1.0) return false;
  if (graph.type(node.inputs[1]).shape.size() != 2) return false;
  if (node.op == Op::kFusedMatMul || node.inputs.size() < 3 || !node.inputs[2]) return true;
  // Not one number for all classes, nor one a row.
  return attrs.f("beta") == 1.0 && graph.type(node.inputs[2]).shape == Shape{graph.type(node.inputs[1]).shape[0]};
}

// x with the steps that stood between logits and loss, in rows of K columns.
ValueId rows_of(Builder& b, ValueId x, const std::vector<NodeId>& steps) {
  const Dim inner = b.shape(x).back();
  const auto of_inner = [&](Shape shape) {
    shape.back() = inner;
    return shape;
  };
  for (auto at = steps.rbegin(); at != steps.rend(); ++at) {
    const Node& step = b.graph().node(*at);
    if (step.op == Op::kReshape) x = b.reshape(x, of_inner(b.shape(step.outputs[0])));
    if (step.op == Op::kSlice) x = b.op(Op::kSlice, {x}, step.attrs);
  }
  return x;
}

bool fuse_at(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const TensorType& logits = graph.type(node.inputs[0]);
  const bool is_weighted = node.inputs.size() > 2 && node.inputs[2];
  if (logits.dtype == DType::kF64 || logits.shape.size() != 2 || is_weighted) return false;
  if (node.attrs.s("reduction") == "none") return false;
  if (node.outputs[1] && is_read(graph, node.outputs[1])) return false;
  Pattern pattern(graph);
  pattern.add(id);
  const Layer layer = match_layer(graph, pattern, node.inputs[0]);
  if (!layer.product || !is_linear(graph, layer.product) || !pattern.is_closed(id)) return false;
  const bool is_cut = std::any_of(layer.steps.begin(), layer.steps.end(),
                                  [&](NodeId step) { return graph.node(step).op == Op::kSlice; });
  if (is_half(logits.dtype) && !is_cut) return false;
  const Node& product = graph.node(layer.product);

  Builder b = before(graph, id);
  b.set_origin(pattern.origin(id));
  ValueId x = rows_of(b, product.inputs[0], layer.steps);
  // A batch of one product has rows in more dims than the loss.
  if (b.rank(x) != 2) x = b.reshape(x, {logits.shape[0], b.shape(x).back()});
  const ValueId bias = product.inputs.size() > 2 ? product.inputs[2] : ValueId{};
  ValueId loss;
  if (is_half(logits.dtype)) {
    const Attrs linear{{"transA", false}, {"transB", true}, {"alpha", 1.0}, {"beta", 1.0}};
    std::vector<ValueId> operands{x, product.inputs[1]};
    if (bias) operands.push_back(bias);
    const ValueId of_rows = b.op(Op::kGemm, std::move(operands), linear);
    loss = b.op(Op::kSoftmaxCrossEntropyLoss, {of_rows, node.inputs[1]}, node.attrs);
  } else {
    std::vector<ValueId> operands{x, product.inputs[1], node.inputs[1]};
    if (bias) operands.push_back(bias);
    loss = b.op(Op::kLinearCrossEntropyLoss, std::move(operands), node.attrs);
  }
  graph.replace_uses(node.outputs[0], loss);
  return true;
}

}  // namespace

bool fuse_linear_cross_entropy(Graph& graph) {
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order)
    if (graph.node(id).op == Op::kSoftmaxCrossEntropyLoss) changed = fuse_at(graph, id) || changed;
  return changed;
}

}  // namespace lowtide
