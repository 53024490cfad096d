#include "passes/fold.h"

#include <algorithm>
#include <set>

#include "ops/rule.h"
#include "passes/fold_rules.h"
#include "passes/index_form.h"
#include "passes/rewrite.h"

namespace lowtide {

namespace {

constexpr int kRounds = 8;

bool is_number(const Graph& graph, ValueId value, int64_t number) {
  const std::optional<Uniform> found = uniform(graph, value);
  if (!found) return false;
  return is_float(found->dtype) ? found->value == static_cast<double>(number) : found->integer.is(number);
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

// Parameters under which an op gives its operand back.
ValueId fold_idle_op(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const auto all = [&](const char* name, int64_t number) {
    const Shape& values = node.attrs.ints(name);
    return std::all_of(values.begin(), values.end(), [&](const Dim& value) { return value.is(number); });
  };
  bool idle = false;
  switch (node.op) {
    case Op::kCopy:
    case Op::kIdentity: idle = true; break;
    case Op::kDropout:
    case Op::kDropoutGrad: idle = node.attrs.f("ratio") == 0; break;
    case Op::kClip: idle = !node.attrs.has("min") && !node.attrs.has("max"); break;
    case Op::kConcat: idle = node.inputs.size() == 1; break;
    case Op::kPad: idle = all("pads", 0); break;
    case Op::kTile: idle = all("repeats", 1); break;
    case Op::kRepeatInterleave: idle = node.attrs.dim("repeats").is(1); break;
    case Op::kRoll: idle = all("shifts", 0); break;
    case Op::kCast: idle = node.attrs.t("to") == graph.type(node.inputs[0]).dtype; break;
    default: break;
  }
  return idle ? node.inputs[0] : ValueId{};
}

// Concat of x and tensors without elements → Concat of the rest
ValueId fold_concat(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.op != Op::kConcat) return {};
  const Dim axis = node.attrs.dim("axis");
  std::vector<ValueId> pieces;
  for (ValueId input : node.inputs)
    if (!graph.type(input).shape[static_cast<size_t>(axis.constant())].is(0)) pieces.push_back(input);
  if (pieces.empty() || pieces.size() == node.inputs.size()) return {};
  return pieces.size() == 1 ? pieces[0] : before(graph, id).op(Op::kConcat, std::move(pieces), {{"axis", axis}});
}

// Every number of `from` is one of `to`.
bool holds_exactly(DType from, DType to) {
  if (from == to) return true;
  if (is_float(from)) return to == DType::kF64 || (to == DType::kF32 && from != DType::kF64);
  if (from == DType::kBool) return true;
  if (is_float(to)) return to == DType::kF64 ? from != DType::kI64 : size_bytes(from) < size_bytes(to);
  if (to == DType::kBool || to == DType::kU8) return false;
  return from == DType::kU8 ? size_bytes(to) > 1 : size_bytes(to) >= size_bytes(from);
}

// Cast(Cast(x)) → Cast(x) if the first loses nothing
ValueId fold_casts(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.op != Op::kCast) return {};
  const NodeId inner = producer(graph, node.inputs[0], Op::kCast);
  if (!inner) return {};
  const ValueId x = operand(graph, inner, 0);
  if (!holds_exactly(graph.type(x).dtype, graph.node(inner).attrs.t("to"))) return {};
  return before(graph, id).cast(x, node.attrs.t("to"));
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
    for (const auto rule :
         {fold_neutral_operand, fold_double_negation, fold_idle_op, fold_concat, fold_casts, fold_views}) {
      const ValueId simpler = rule(graph_, id);
      if (simpler && replace(output, simpler, capacity)) return true;
    }
    for (const auto rule : {&Folder::fold_index_arithmetic, &Folder::fold_mask, &Folder::fold_where}) {
      const ValueId simpler = (this->*rule)(id);
      if (simpler && replace(output, simpler, capacity)) return true;
    }
    return drop_expand(id);
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
      if (!truth || truth->kind == Truth::kWhereNotPositive) return {};
      number = truth->kind == Truth::kTrue;
    } else {
      const IndexForm* form = forms_.form(output);
      if (!form || !form->is_constant()) return {};
      number = form->offset;
    }
    Builder b = before(graph_, id);
    return b.expand(b.scalar_dim(number, type.dtype), type.shape);
  }

  // true and x, false or x → x
  ValueId fold_mask(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.op != Op::kAnd && node.op != Op::kOr) return {};
    const Shape shape = graph_.type(node.outputs[0]).shape;
    for (size_t i = 0; i < 2; ++i)
      if (forms_.is_all(node.inputs[i], node.op == Op::kAnd))
        return before(graph_, id).expand(node.inputs[1 - i], shape);
    return node.inputs[0] == node.inputs[1] ? node.inputs[0] : ValueId{};
  }

  // Whether the gradient, not built yet, will reach an input through `value`.
  bool gradient_passes(ValueId value) const {
    if (graph_.yield()) return false;
    std::vector<ValueId> pending = {value};
    std::set<ValueId> seen;
    while (!pending.empty()) {
      const ValueId next = pending.back();
      pending.pop_back();
      if (!next || !is_float(graph_.type(next).dtype) || !seen.insert(next).second) continue;
      const NodeId id = graph_.value(next).producer;
      if (!id && graph_.find_input(next)->requires_grad) return true;
      if (!id || has_trait(graph_.node(id).op, Trait::kBlocksGradient)) continue;
      const std::vector<ValueId>& inputs = graph_.node(id).inputs;
      pending.insert(pending.end(), inputs.begin(), inputs.end());
    }
    return false;
  }

  // Where with a condition that never varies → the operand that it always takes. The other one may not lead to an input
  // that requires a gradient: PyTorch gives that one zeros, and nothing would give it none.
  ValueId fold_where(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.op != Op::kWhere) return {};
    const Shape shape = graph_.type(node.outputs[0]).shape;
    for (const bool branch : {true, false})
      if (forms_.is_all(node.inputs[0], branch) && !gradient_passes(node.inputs[branch ? 2 : 1]))
        return before(graph_, id).expand(node.inputs[branch ? 1 : 2], shape);
    return {};
  }

  // Add(Expand(x), y) → Add(x, y) where y alone gives the result its shape
  bool drop_expand(NodeId id) {
    const Node& node = graph_.node(id);
    if (info(node.op).category != OpCategory::kPointwise || node.inputs.size() < 2) return false;
    if (has_trait(node.op, Trait::kKeepsExpand)) return false;
    const Shape& shape = graph_.type(node.outputs[0]).shape;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const NodeId expand = producer(graph_, node.inputs[i], Op::kExpand);
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

  Graph& graph_;
  IndexForms forms_;
};

}  // namespace

bool fold(Graph& graph) { return Folder(graph).run(); }

}  // namespace lowtide
