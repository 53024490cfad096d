#include "ops/builder.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "ops/inference.h"

namespace lowtide {

std::vector<Dim> dims(const std::vector<int64_t>& values) { return {values.begin(), values.end()}; }

Builder before(Graph& graph, NodeId node) {
  Builder builder(graph);
  builder.insert_before(node);
  builder.set_origin(graph.node(node).origin);
  return builder;
}

NodeId Builder::node(Op op, std::vector<ValueId> inputs, Attrs attrs, std::vector<bool> wanted) {
  std::vector<const TensorType*> operands;
  for (ValueId input : inputs) operands.push_back(input ? &graph_.type(input) : nullptr);
  std::vector<TensorType> types;
  try {
    types = infer(op, operands, attrs, graph_.ranges());
  } catch (const Error& error) {
    throw Error(error.kind(), with_origin(error.what(), origin_));
  }
  wanted.resize(types.size(), wanted.empty());
  for (size_t i = 0; i < types.size(); ++i)
    if (is_no_output(types[i])) wanted[i] = false;
  std::vector<std::string> names;
  if (!name_.empty()) names.push_back(std::exchange(name_, {}));
  return graph_.add_node(op, std::move(inputs), std::move(types), std::move(attrs), origin_, before_, std::move(names),
                         std::move(wanted));
}

ValueId Builder::op(Op op, std::vector<ValueId> inputs, Attrs attrs) {
  return graph_.node(node(op, std::move(inputs), std::move(attrs))).outputs.at(0);
}

ValueId Builder::scalar(double value, DType dtype) { return full({}, value, dtype); }

ValueId Builder::scalar_dim(const Dim& value, DType dtype) {
  if (is_float(dtype) && value.is_constant()) return scalar(static_cast<double>(value.constant()), dtype);
  const DType stored = is_float(dtype) ? DType::kI64 : dtype;
  return cast(op(Op::kConstant, {}, {{"dtype", stored}, {"int_value", value}}), dtype);
}

ValueId Builder::full(const Shape& shape, double value, DType dtype) {
  Attrs attrs{{"dtype", dtype}};
  if (is_float(dtype)) {
    attrs.set("value", value);
  } else {
    attrs.set("int_value", Dim(static_cast<int64_t>(value)));
  }
  if (shape.empty()) return op(Op::kConstant, {}, std::move(attrs));
  attrs.set("shape", shape);
  return op(Op::kConstantOfShape, {}, std::move(attrs));
}

ValueId Builder::cast(ValueId x, DType to) { return dtype(x) == to ? x : op(Op::kCast, {x}, {{"to", to}}); }

ValueId Builder::reshape(ValueId x, Shape shape) {
  return this->shape(x) == shape ? x : op(Op::kReshape, {x}, {{"shape", std::move(shape)}});
}

ValueId Builder::transpose(ValueId x, std::vector<int64_t> perm) {
  return std::is_sorted(perm.begin(), perm.end()) ? x : op(Op::kTranspose, {x}, {{"perm", dims(perm)}});
}

ValueId Builder::swap_axes(ValueId x, int64_t a, int64_t b) {
  std::vector<int64_t> perm(static_cast<size_t>(rank(x)));
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm.at(static_cast<size_t>(a)), perm.at(static_cast<size_t>(b)));
  return transpose(x, std::move(perm));
}

ValueId Builder::expand(ValueId x, Shape shape) {
  return this->shape(x) == shape ? x : op(Op::kExpand, {x}, {{"shape", std::move(shape)}});
}

ValueId Builder::unsqueeze(ValueId x, std::vector<int64_t> axes) {
  return axes.empty() ? x : op(Op::kUnsqueeze, {x}, {{"axes", dims(axes)}});
}

ValueId Builder::squeeze(ValueId x, std::vector<int64_t> axes) {
  return axes.empty() ? x : op(Op::kSqueeze, {x}, {{"axes", dims(axes)}});
}

ValueId Builder::slice(ValueId x, int64_t axis, Dim start, Dim end, Dim step) {
  if (start.is(0) && step.is(1) && end == shape(x).at(static_cast<size_t>(axis))) return x;
  return op(Op::kSlice, {x}, {{"axis", Dim(axis)}, {"start", start}, {"end", end}, {"step", step}});
}

ValueId Builder::reduce(Op op, ValueId x, std::vector<int64_t> axes, bool keepdims) {
  const bool keeps_single_elements = op != Op::kReduceL2;
  if (axes.empty() && keeps_single_elements) return x;
  return this->op(op, {x}, {{"axes", dims(axes)}, {"keepdims", keepdims}});
}

ValueId Builder::pad_axis(ValueId x, int64_t axis, Dim before, Dim after) {
  if (before.is(0) && after.is(0)) return x;
  std::vector<Dim> pads(2 * shape(x).size(), Dim(0));
  pads.at(static_cast<size_t>(axis)) = before;
  pads.at(static_cast<size_t>(rank(x) + axis)) = after;
  return op(Op::kPad, {x}, {{"pads", std::move(pads)}, {"mode", "constant"}, {"value", 0.0}});
}

ValueId Builder::reduce_to(ValueId x, const Shape& shape) {
  const Shape& from = this->shape(x);
  LT_CHECK(from.size() >= shape.size(), "cannot sum ", to_string(type(x)), " down to ", to_string(shape));
  const size_t lead = from.size() - shape.size();
  std::vector<int64_t> axes;
  for (size_t i = 0; i < from.size(); ++i)
    if (i < lead || (shape[i - lead].is(1) && !from[i].is(1))) axes.push_back(static_cast<int64_t>(i));
  const bool only_leading = axes.size() == lead, keeps = lead == 0;
  const ValueId sum = reduce(Op::kReduceSum, x, std::move(axes), keeps);
  return only_leading || keeps ? sum : reshape(sum, shape);
}

}  // namespace lowtide
