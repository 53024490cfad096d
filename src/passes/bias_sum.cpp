#include "passes/bias_sum.h"

namespace lowtide {

namespace {

bool is_column_bias(const Graph& graph, ValueId bias, const TensorType& sum) {
  const TensorType& type = graph.type(bias);
  return type.dtype == sum.dtype && type.shape.size() == 1 && sum.shape.size() >= 2 &&
         type.shape[0] == sum.shape.back();
}

std::optional<BiasSum> match_add(const Graph& graph, Pattern& pattern, NodeId add, const TensorType& type) {
  for (size_t i = 0; i < 2; ++i) {
    const ValueId x = operand(graph, add, i), bias = operand(graph, add, 1 - i);
    if (graph.type(x) != type || !is_column_bias(graph, bias, type)) continue;
    pattern.add(add);
    return BiasSum{x, bias, {}};
  }
  return std::nullopt;
}

}  // namespace

std::optional<BiasSum> match_bias_sum(const Graph& graph, Pattern& pattern, ValueId sum) {
  const TensorType& type = graph.type(sum);
  if (!is_float(type.dtype)) return std::nullopt;
  if (const NodeId add = producer(graph, sum, Op::kAdd)) return match_add(graph, pattern, add, type);
  Pattern attempt = pattern;
  ValueId value = sum;
  while (const NodeId reshape = attempt.take(value, Op::kReshape)) value = operand(graph, reshape, 0);
  const NodeId product = attempt.take(value, Op::kGemm);
  if (!product || graph.node(product).inputs.size() < 3 || graph.node(product).attrs.f("beta") != 1)
    return std::nullopt;
  const ValueId bias = operand(graph, product, 2);
  // Columns stay columns through the views.
  if (!bias || !is_column_bias(graph, bias, type) || !is_column_bias(graph, bias, graph.type(value)))
    return std::nullopt;
  pattern = attempt;
  return BiasSum{sum, bias, product};
}

ValueId without_bias(Graph& graph, const BiasSum& sum) {
  if (!sum.product) return sum.x;
  // From the sum down to the product; the old nodes lose their readers with the match.
  std::vector<NodeId> chain;
  for (ValueId value = sum.x; chain.empty() || chain.back() != sum.product; value = operand(graph, chain.back(), 0))
    chain.push_back(graph.value(value).producer);
  ValueId made;
  for (auto at = chain.rbegin(); at != chain.rend(); ++at) {
    const Node& old = graph.node(*at);
    const std::string name = graph.value(old.outputs[0]).name;
    graph.rename(old.outputs[0], name + "_biased");
    std::vector<ValueId> inputs = old.inputs;
    if (*at == sum.product) {
      inputs.pop_back();
    } else {
      inputs[0] = made;
    }
    const NodeId node =
        graph.add_node(old.op, std::move(inputs), {graph.type(old.outputs[0])}, old.attrs, old.origin, *at, {name});
    made = graph.node(node).outputs[0];
  }
  return made;
}

Origin bias_origin(const Graph& graph, std::initializer_list<NodeId> nodes) {
  Origin origin = graph.node(*(nodes.end() - 1)).origin;
  if (origin.kind == OriginKind::kForward) origin.kind = OriginKind::kFused;
  origin.note = name(Op::kAdd);
  for (NodeId id : nodes) {
    const Node& node = graph.node(id);
    origin.note += '+';
    origin.note += node.origin.note.empty() ? name(node.op) : std::string_view(node.origin.note);
  }
  return origin;
}

}  // namespace lowtide
