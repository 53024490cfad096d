#include "passes/fold.h"

#include "ops/rule.h"
#include "ops/simplify.h"
#include "passes/rewrite.h"

namespace lowtide {

namespace {

constexpr int kRounds = 8;

bool is_number(const Graph& graph, ValueId value, int64_t number) {
  const std::optional<Uniform> found = uniform(graph, value);
  return found && found->is(number);
}

// x + 0, x * 1, x - 0, x / 1, x ** 1 → x, broadcast to the result
ValueId fold_neutral_operand(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const bool is_one = has_trait(node.op, Trait::kOneIsNeutral);
  if (!is_one && !has_trait(node.op, Trait::kZeroIsNeutral)) return {};
  if (has_trait(node.op, Trait::kRoundsFloats) && is_float(graph.type(node.inputs[0]).dtype)) return {};
  const Shape shape = graph.type(node.outputs[0]).shape;
  const ValueId x = node.inputs[0], y = node.inputs[1];
  if (is_number(graph, y, is_one)) return before(graph, id).expand(x, shape);
  if (has_trait(node.op, Trait::kCommutative) && is_number(graph, x, is_one)) return before(graph, id).expand(y, shape);
  return {};
}

// -(-x), not not x → x
ValueId fold_double_negation(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (!has_trait(node.op, Trait::kInvolution)) return {};
  const NodeId inner = producer(graph, node.inputs[0], node.op);
  return inner ? operand(graph, inner, 0) : ValueId{};
}

class Folder {
 public:
  explicit Folder(Graph& graph) : graph_(graph), forms_(graph) {}

  bool run() {
    return rewrite_nodes(graph_, kRounds, [this](NodeId id) { return fold_node(id); });
  }

 private:
  bool fold_node(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.outputs.size() != 1 || node.body || is_call(node.op)) return drop_expand(id);
    const ValueId output = node.outputs[0];
    if (!is_read(graph_, output)) return false;
    // An inspected view has a gradient of its own: what it shows may have other readers.
    if (is_view(node.op) && is_inspected(graph_, output)) return false;
    const size_t capacity = graph_.node_capacity();
    const auto takes_place = [&](ValueId simpler) { return simpler && replace(output, simpler, capacity); };
    return takes_place(fold_neutral_operand(graph_, id)) || takes_place(fold_double_negation(graph_, id)) ||
           takes_place(simplify(graph_, id, forms_)) || takes_place(fold_index_arithmetic(id)) || drop_expand(id) ||
           takes_place(expand_later(id));
  }

  // Undoes what a rule has built if its result may not take the place of `output`.
  bool replace(ValueId output, ValueId simpler, size_t capacity) {
    const bool fits = graph_.type(simpler) == graph_.type(output) && may_replace(graph_, output, simpler);
    if (fits) {
      graph_.replace_uses(output, simpler);
      return true;
    }
    for (size_t i = graph_.node_capacity(); i-- > capacity;)
      if (const NodeId built{static_cast<int32_t>(i)}; graph_.is_alive(built)) graph_.remove(built);
    return false;
  }

  // An integer tensor that is one number, a mask that is true or false everywhere → a broadcast scalar
  ValueId fold_index_arithmetic(NodeId id) {
    const Node& node = graph_.node(id);
    const ValueId output = node.outputs[0];
    if (is_view(node.op) || has_trait(node.op, Trait::kFiller) || node.inputs.empty()) return {};
    const TensorType type = graph_.type(output);
    Dim number;
    if (type.dtype == DType::kBool) {
      const Truth* truth = forms_.truth(output);
      if (!truth || !truth->is_constant()) return {};
      number = truth->kind == Truth::kTrue;
    } else {
      const IndexForm* form = forms_.form(output);
      if (!form || !form->is_constant()) return {};
      number = form->offset;
    }
    Builder b = before(graph_, id);
    return b.expand(b.scalar_dim(number, type.dtype), type.shape);
  }

  // Add(Expand(x), y) → Add(x, y) where y alone gives the result its shape
  bool drop_expand(NodeId id) {
    const Node& node = graph_.node(id);
    if (info(node.op).category != OpCategory::kPointwise || node.inputs.size() < 2) return false;
    if (has_trait(node.op, Trait::kKeepsExpand)) return false;
    const Shape& shape = graph_.type(node.outputs[0]).shape;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const NodeId expand = producer_with(graph_, node.inputs[i], Trait::kRepeatsElements);
      if (!expand) continue;
      const ValueId x = operand(graph_, expand, 0);
      Shape rest = graph_.type(x).shape;
      for (size_t j = 0; j < node.inputs.size(); ++j)
        if (j != i) rest = broadcast(rest, graph_.type(node.inputs[j]).shape);
      if (rest != shape) continue;
      graph_.set_operand(id, i, x);
      return true;
    }
    return false;
  }

  // Where(Expand(mask), 0, -inf) → Expand(Where(mask, 0, -inf)): what is the same along a dim is computed once. Floats
  // stay as they are, whose gradients would be summed in another order.
  ValueId expand_later(NodeId id) {
    const Node& node = graph_.node(id);
    if (info(node.op).category != OpCategory::kPointwise || has_trait(node.op, Trait::kKeepsExpand)) return {};
    std::vector<ValueId> inputs = node.inputs;
    Shape narrow;
    for (ValueId& input : inputs) {
      if (!input) return {};
      if (const NodeId expand = producer_with(graph_, input, Trait::kRepeatsElements);
          expand && !is_float(graph_.type(input).dtype))
        input = operand(graph_, expand, 0);
      narrow = broadcast(narrow, graph_.type(input).shape);
    }
    const Shape shape = graph_.type(node.outputs[0]).shape;
    if (inputs == node.inputs || narrow == shape) return {};
    const Attrs attrs = node.attrs;
    const Op op = node.op;
    Builder b = before(graph_, id);
    return b.expand(b.op(op, std::move(inputs), attrs), shape);
  }

  Graph& graph_;
  IndexForms forms_;
};

}  // namespace

bool fold(Graph& graph) { return Folder(graph).run(); }

}  // namespace lowtide
