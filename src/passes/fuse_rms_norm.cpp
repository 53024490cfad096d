#include "passes/fuse_rms_norm.h"

#include "passes/pattern.h"

namespace lowtide {

namespace {

// x if `value` = x**2
ValueId square_of(const Graph& graph, Pattern& pattern, ValueId value) {
  if (const ValueId x = pattern.take_with_constant(value, Op::kPow, 2.0)) return x;
  const NodeId product = producer(graph, value, Op::kMul);
  if (!product || operand(graph, product, 0) != operand(graph, product, 1)) return {};
  pattern.add(product);
  return operand(graph, product, 0);
}

struct MeanSquare {
  ValueId x;
  double epsilon;
};

// x and epsilon if `value` = mean(x**2, last dim, keepdims) + epsilon
std::optional<MeanSquare> mean_square(const Graph& graph, Pattern& pattern, ValueId value) {
  const NodeId sum = pattern.take(value, Op::kAdd);
  if (!sum) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    const std::optional<double> epsilon = uniform_float(graph, operand(graph, sum, 1 - i));
    const NodeId mean = producer(graph, operand(graph, sum, i), Op::kReduceMean);
    if (!epsilon || !mean || graph.type(operand(graph, sum, 1 - i)).shape.size() > 0) continue;
    const Node& node = graph.node(mean);
    const Shape& axes = node.attrs.ints("axes");
    const auto rank = static_cast<int64_t>(graph.type(node.inputs[0]).shape.size());
    if (!node.attrs.b("keepdims") || axes.size() != 1 || !axes[0].is(rank - 1)) continue;
    pattern.add(mean);
    const ValueId x = square_of(graph, pattern, node.inputs[0]);
    return x ? std::optional(MeanSquare{x, *epsilon}) : std::nullopt;
  }
  return std::nullopt;
}

// v if `value` = 1/sqrt(v)
ValueId reciprocal_root_of(const Graph& graph, Pattern& pattern, ValueId value) {
  if (const NodeId root = pattern.take(value, Op::kRsqrt)) return operand(graph, root, 0);
  if (const ValueId v = pattern.take_with_constant(value, Op::kPow, -0.5)) return v;
  const NodeId reciprocal = pattern.take(value, Op::kReciprocal);
  const NodeId root = reciprocal ? pattern.take(operand(graph, reciprocal, 0), Op::kSqrt) : NodeId{};
  return root ? operand(graph, root, 0) : ValueId{};
}

// x and epsilon if `norm` = x * rsqrt(mean(x**2) + epsilon)
std::optional<MeanSquare> match_norm(const Graph& graph, Pattern& pattern, NodeId norm) {
  const Node& node = graph.node(norm);
  pattern.add(norm);
  if (node.op == Op::kDiv) {
    const NodeId root = pattern.take(node.inputs[1], Op::kSqrt);
    const std::optional<MeanSquare> found =
        root ? mean_square(graph, pattern, operand(graph, root, 0)) : std::optional<MeanSquare>();
    return found && found->x == node.inputs[0] ? found : std::nullopt;
  }
  for (size_t i = 0; i < 2; ++i) {
    Pattern attempt = pattern;
    const ValueId v = reciprocal_root_of(graph, attempt, node.inputs[1 - i]);
    const std::optional<MeanSquare> found = v ? mean_square(graph, attempt, v) : std::nullopt;
    if (!found || found->x != node.inputs[i]) continue;
    pattern = attempt;
    return found;
  }
  return std::nullopt;
}

// The weight if `scaled` = weight * norm, with one weight per column.
ValueId weight_of(const Graph& graph, NodeId scaled, ValueId norm) {
  const Node& node = graph.node(scaled);
  if (node.op != Op::kMul) return {};
  const ValueId weight = node.inputs[node.inputs[0] == norm ? 1 : 0];
  const TensorType &type = graph.type(norm), &found = graph.type(weight);
  const bool fits = found.dtype == type.dtype && found.shape.size() == 1 && found.shape[0] == type.shape.back();
  return fits && weight != norm ? weight : ValueId{};
}

bool fuse_rms_norm_at(Graph& graph, NodeId norm) {
  Pattern pattern(graph);
  const std::optional<MeanSquare> found = match_norm(graph, pattern, norm);
  if (!found || !is_float(graph.type(found->x).dtype)) return false;
  const ValueId normed = graph.node(norm).outputs[0];
  NodeId root = norm;
  std::vector<ValueId> operands = {found->x};
  if (graph.value(normed).users.size() == 1 && !graph.is_output(normed)) {
    const NodeId user = graph.value(normed).users[0];
    if (const ValueId weight = weight_of(graph, user, normed)) {
      root = user;
      pattern.add(user);
      operands.push_back(weight);
    }
  }
  const ValueId result = graph.node(root).outputs[0];
  if (!pattern.is_closed(root) || graph.type(result) != graph.type(found->x)) return false;
  const auto axis = static_cast<int64_t>(graph.type(found->x).shape.size()) - 1;
  Builder b = before(graph, root);
  b.set_origin(pattern.origin(root));
  const ValueId y =
      b.op(Op::kSimplifiedLayerNormalization, std::move(operands), {{"axis", Dim(axis)}, {"epsilon", found->epsilon}});
  graph.replace_uses(result, y);
  return true;
}

}  // namespace

bool fuse_rms_norm(Graph& graph) {
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order)
    if (const Op op = graph.node(id).op; op == Op::kMul || op == Op::kDiv)
      changed = fuse_rms_norm_at(graph, id) || changed;
  return changed;
}

}  // namespace lowtide
