#include "ops/view.h"

#include <algorithm>

#include "base/check.h"

namespace lowtide {

Shape row_major_strides(const Shape& shape) {
  Shape strides(shape.size());
  Dim next = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = next;
    next = next * shape[i];
  }
  return strides;
}

bool same_strides(const Shape& shape, const Shape& a, const Shape& b) {
  for (size_t i = 0; i < shape.size(); ++i)
    if (!shape[i].is(1) && !(a[i] == b[i])) return false;
  return true;
}

std::optional<Shape> reshape_strides(const Shape& old_shape, const Shape& old_strides, const Shape& shape) {
  if (same_strides(old_shape, old_strides, row_major_strides(old_shape))) return row_major_strides(shape);
  // Drop dims of size 1, then walk both shapes from the back: a run of old dims that is one contiguous chunk must
  // split into whole new dims.
  Shape sizes, steps;
  for (size_t i = 0; i < old_shape.size(); ++i)
    if (!old_shape[i].is(1)) {
      sizes.push_back(old_shape[i]);
      steps.push_back(old_strides[i]);
    }
  Shape result(shape.size(), Dim(1));
  size_t old_end = sizes.size();
  size_t next = shape.size();
  while (old_end > 0) {
    // The chunk [begin, old_end).
    size_t begin = old_end - 1;
    while (begin > 0 && steps[begin - 1] == steps[begin] * sizes[begin]) --begin;
    Dim chunk = 1;
    for (size_t i = begin; i < old_end; ++i) chunk = chunk * sizes[i];
    Dim taken = 1;
    Dim stride = steps[old_end - 1];
    while (next > 0 && !(taken == chunk)) {
      --next;
      result[next] = stride;
      stride = stride * shape[next];
      taken = taken * shape[next];
    }
    if (!(taken == chunk)) return std::nullopt;
    old_end = begin;
  }
  while (next > 0)
    if (!shape[--next].is(1)) return std::nullopt;
  return result;
}

namespace {

// What a rule sees of a view: its operand's shape and strides, its attributes, the shape of its result.
struct ViewArgs {
  const Attrs& attrs;
  const Shape& from;
  const Strided& operand;
  const Shape& to;

  bool lists_axis(size_t axis) const {
    const std::vector<int64_t> axes = attrs.is("axes");
    return std::find(axes.begin(), axes.end(), static_cast<int64_t>(axis)) != axes.end();
  }
};

// ---- the rules that ops.def names

std::optional<Strided> view_same(const ViewArgs& view) { return view.operand; }

std::optional<Strided> view_reshape(const ViewArgs& view) {
  std::optional<Shape> strides = reshape_strides(view.from, view.operand.strides, view.to);
  if (!strides) return std::nullopt;
  return Strided{view.operand.offset, std::move(*strides)};
}

std::optional<Strided> view_transpose(const ViewArgs& view) {
  const std::vector<int64_t> perm = view.attrs.is("perm");
  Strided result = view.operand;
  for (size_t i = 0; i < perm.size(); ++i) result.strides[i] = view.operand.strides[static_cast<size_t>(perm[i])];
  return result;
}

std::optional<Strided> view_slice(const ViewArgs& view) {
  const auto axis = static_cast<size_t>(view.attrs.i("axis"));
  Strided result = view.operand;
  result.offset = result.offset + view.attrs.dim("start") * result.strides[axis];
  result.strides[axis] = result.strides[axis] * view.attrs.dim("step");
  return result;
}

// Only the constant 1 repeats: a size that is written otherwise than the target's (min(2, a) and b) is equal to it.
std::optional<Strided> view_expand(const ViewArgs& view) {
  const size_t grown = view.to.size() - view.from.size();
  Strided result{view.operand.offset, Shape(view.to.size(), Dim(0))};
  for (size_t i = 0; i < view.from.size(); ++i)
    if (!view.from[i].is(1)) result.strides[grown + i] = view.operand.strides[i];
  return result;
}

// A dim of size 1 may have any stride: the one that row-major code would expect keeps the layout recognisable.
std::optional<Strided> view_unsqueeze(const ViewArgs& view) {
  Strided result{view.operand.offset, {}};
  size_t next = 0;
  for (size_t i = 0; i < view.to.size(); ++i)
    result.strides.push_back(view.lists_axis(i) ? Dim(1) : view.operand.strides[next++]);
  return result;
}

std::optional<Strided> view_squeeze(const ViewArgs& view) {
  Strided result{view.operand.offset, {}};
  for (size_t i = 0; i < view.from.size(); ++i)
    if (!view.lists_axis(i)) result.strides.push_back(view.operand.strides[i]);
  return result;
}

using ViewFunction = std::optional<Strided> (*)(const ViewArgs&);

ViewFunction view_function(Op op) {
  switch (op) {
#define LT_OP(...)
#define LT_VIEW(name, rule) \
  case Op::k##name: return rule;
#include "opset/ops.def"
    default: return nullptr;
  }
}

}  // namespace

std::optional<Strided> view_of(const Graph& graph, const Node& view, const Strided& operand) {
  const ViewFunction rule = view_function(view.op);
  LT_CHECK(rule != nullptr, name(view.op), " is no view");
  return rule({view.attrs, graph.type(view.inputs[0]).shape, operand, graph.type(view.outputs[0]).shape});
}

}  // namespace lowtide
