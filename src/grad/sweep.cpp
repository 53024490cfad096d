#include "grad/sweep.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "ir/views.h"
#include "ops/inference.h"
#include "ops/rule.h"

namespace lowtide {

std::string grad_name(const Graph& graph, ValueId value) { return graph.value(value).name + "_grad"; }

Origin gradient_origin(const Origin& of) { return {of.module, of.line, OriginKind::kGradient, {}}; }

// Its gradient is the same elements in another shape or order.
static bool only_moves(Op op) {
  return is_view(op) && !has_trait(op, Trait::kDropsElements) && !has_trait(op, Trait::kRepeatsElements);
}

Sweep::Sweep(Builder& builder, std::vector<bool> needs)
    : graph_(builder.graph()), builder_(builder), needs_(std::move(needs)), gradients_(needs_.size()) {
  for (size_t i = 0; i < needs_.size(); ++i) sum_dtypes_.push_back(dtype_of_sum(ValueId(static_cast<int32_t>(i))));
}

// One cast may stand for several (cse), whose gradients PyTorch adds when they are widened again. Of a parameter
// autocast makes one cast itself.
DType Sweep::dtype_of_sum(ValueId value) const {
  const DType dtype = graph_.type(value).dtype;
  if (!needs_[value.at()] || !is_half(dtype)) return dtype;
  NodeId producer = graph_.value(value).producer;
  while (producer && only_moves(graph_.node(producer).op))
    producer = graph_.value(graph_.node(producer).inputs[0]).producer;
  if (!producer || !has_trait(graph_.node(producer).op, Trait::kConvertsDtype)) return dtype;
  const ValueId x = graph_.node(producer).inputs[0];
  const GraphInput* input = graph_.find_input(base_of_views(graph_, x));
  const bool is_kept = input != nullptr && input->kind == InputKind::kParam;
  const DType wide = graph_.type(x).dtype;
  return !is_kept && is_float(wide) && size_bytes(wide) > size_bytes(dtype) ? wide : dtype;
}

void Sweep::visit(NodeId id) {
  const Node& node = graph_.node(id);
  if (has_trait(node.op, Trait::kBlocksGradient)) return;
  // What casts and views between them are given stays as wide as it was added up.
  const bool passes_on = has_trait(node.op, Trait::kConvertsDtype) || only_moves(node.op);
  std::vector<ValueId> output_grads;
  for (ValueId output : node.outputs)
    output_grads.push_back(!output ? ValueId{} : passes_on ? sum_of(output) : total(output));
  if (std::none_of(output_grads.begin(), output_grads.end(), [](ValueId grad) { return grad.valid(); })) return;
  std::vector<bool> wanted;
  for (ValueId input : node.inputs) wanted.push_back(input && needs_[input.at()]);
  if (std::none_of(wanted.begin(), wanted.end(), [](bool wants) { return wants; })) return;
  const Origin origin = gradient_origin(node.origin);
  builder_.set_origin(origin);
  if (node.op == Op::kSlice && node.attrs.dim("step").is(1)) {
    Accumulated& into = gradients_[node.inputs[0].at()];
    into.pieces.push_back({output_grads[0], node.attrs.i("axis"), node.attrs.dim("start"), node.attrs.dim("end")});
    into.origin = origin;
    return;
  }
  const GradFunction rule = grad_function(node.op);
  LT_CHECK(rule != nullptr, "a gradient flows into ", with_origin(std::string(name(node.op)), node.origin),
           ", which has no rule");
  const size_t values_before = graph_.value_count();
  GradContext context(builder_, graph_, id, std::move(output_grads), std::move(wanted),
                      std::vector<ValueId>(node.inputs.size()));
  rule(context);
  std::set<ValueId> named;
  for (size_t i = 0; i < context.results().size(); ++i) {
    ValueId grad = context.results()[i];
    if (!grad) continue;
    const ValueId input = node.inputs[i];
    const TensorType &found = graph_.type(grad), &expected = graph_.type(input);
    LT_CHECK(context.wants(i), name(node.op), ": the rule made a gradient of operand ", i, ", which needs none");
    LT_CHECK((found.dtype == expected.dtype || passes_on) && shapes_agree(found.shape, expected.shape, graph_.ranges()),
             name(node.op), ": operand ", i, " is ", to_string(expected), ", its gradient ", to_string(found));
    // One text for one size, however the rule came by it. What another operand has too keeps its own.
    const bool is_its_own = grad.at() >= values_before && !named.contains(grad);
    const TensorType as_expected{found.dtype, expected.shape};
    if (found != as_expected && (is_its_own || is_complex(expected.dtype))) {
      graph_.set_type(grad, as_expected);
    } else if (found != as_expected) {
      grad = builder_.reshape(grad, expected.shape);
    }
    if (grad.at() >= values_before && named.insert(grad).second) graph_.rename(grad, grad_name(graph_, input));
    add(input, grad, origin);
  }
}

void Sweep::add(ValueId value, ValueId grad, const Origin& origin) {
  Accumulated& into = gradients_[value.at()];
  into.origin = origin;
  if (!into.sum) {
    into.sum = grad;
    return;
  }
  builder_.set_origin(origin);
  DType dtype = sum_dtypes_[value.at()];
  for (ValueId each : {into.sum, grad})
    if (size_bytes(graph_.type(each).dtype) > size_bytes(dtype)) dtype = graph_.type(each).dtype;
  into.sum = builder_.cast(into.sum, dtype);
  grad = builder_.cast(grad, dtype);
  into.sum = is_complex(graph_.type(grad).dtype) ? add_complex(value, into.sum, grad)
                                                 : builder_.named(grad_name(graph_, value)).add(into.sum, grad);
}

// Add has no complex numbers.
ValueId Sweep::add_complex(ValueId value, ValueId a, ValueId b) {
  const Attrs attrs{{"operands", std::vector<std::string>{"self", "other"}}, {"alpha", Dim(1)}};
  const NodeId sum = graph_.add_node(Op::kAten, {a, b}, {graph_.type(value)}, attrs, builder_.origin(), {},
                                     {grad_name(graph_, value)});
  graph_.edit(sum).target = "aten::add.Tensor";
  return graph_.node(sum).outputs[0];
}

ValueId Sweep::total(ValueId value) {
  const ValueId sum = sum_of(value);
  if (!sum) return sum;
  builder_.set_origin(gradients_[value.at()].origin);
  return builder_.cast(sum, graph_.type(value).dtype);
}

ValueId Sweep::sum_of(ValueId value) {
  Accumulated& from = gradients_[value.at()];
  if (from.pieces.empty()) return from.sum;
  builder_.set_origin(from.origin);
  std::vector<GradientPiece> pieces = std::exchange(from.pieces, {});
  add(value, join_pieces(builder_, graph_.type(value).shape, std::move(pieces)), from.origin);
  return from.sum;
}

std::vector<ValueId> Sweep::totals() const {
  std::vector<ValueId> totals;
  for (const Accumulated& gradient : gradients_) totals.push_back(gradient.pieces.empty() ? gradient.sum : ValueId{});
  return totals;
}

}  // namespace lowtide
