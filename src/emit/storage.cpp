#include "emit/storage.h"

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

Shape channels_last_strides(const Shape& shape) {
  LT_CHECK(shape.size() == 4, "channels-last needs rank 4, not ", shape.size());
  const Dim &channels = shape[1], &height = shape[2], &width = shape[3];
  return {height * width * channels, 1, width * channels, channels};
}

Shape heads_last_strides(const Shape& shape) {
  LT_CHECK(shape.size() == 4, "heads-last needs rank 4, not ", shape.size());
  const Dim &heads = shape[1], &length = shape[2], &width = shape[3];
  return {length * heads * width, width, heads * width, 1};
}

bool same_strides(const Shape& shape, const Shape& a, const Shape& b) {
  for (size_t i = 0; i < shape.size(); ++i)
    if (!shape[i].is(1) && !(a[i] == b[i])) return false;
  return true;
}

Layout layout_of(const Shape& shape, const Shape& strides) {
  if (same_strides(shape, strides, row_major_strides(shape))) return Layout::kRowMajor;
  if (shape.size() == 4 && same_strides(shape, strides, channels_last_strides(shape))) return Layout::kChannelsLast;
  if (!shape.empty() && (strides.back().is(1) || shape.back().is(1))) return Layout::kInnerDense;
  return Layout::kStrided;
}

bool is_dense(const Shape& shape, const Shape& strides) {
  // Peel off the dim whose stride is the product of the sizes peeled so far.
  std::vector<bool> done(shape.size());
  Dim expected = 1;
  for (size_t round = 0; round < shape.size(); ++round) {
    bool found = false;
    for (size_t i = 0; i < shape.size() && !found; ++i)
      if (!done[i] && (shape[i].is(1) || strides[i] == expected)) {
        done[i] = found = true;
        expected = expected * shape[i];
      }
    if (!found) return false;
  }
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

std::optional<Storage> view_storage(const Graph& graph, NodeId id, const Shape& input_shape, const Storage& input) {
  const Node& node = graph.node(id);
  const Shape& shape = graph.type(node.outputs[0]).shape;
  Storage result = input;
  switch (node.op) {
    case Op::kIdentity:
    case Op::kDetach: return result;
    case Op::kReshape: {
      std::optional<Shape> strides = reshape_strides(input_shape, input.strides, shape);
      if (!strides) return std::nullopt;
      result.strides = *strides;
      return result;
    }
    case Op::kTranspose: {
      const std::vector<int64_t> perm = node.attrs.is("perm");
      for (size_t i = 0; i < perm.size(); ++i) result.strides[i] = input.strides[static_cast<size_t>(perm[i])];
      return result;
    }
    case Op::kSlice: {
      const size_t axis = static_cast<size_t>(node.attrs.i("axis"));
      result.offset = input.offset + node.attrs.dim("start") * input.strides[axis];
      result.strides[axis] = input.strides[axis] * node.attrs.dim("step");
      return result;
    }
    case Op::kExpand: {
      const size_t grown = shape.size() - input_shape.size();
      result.strides.assign(shape.size(), Dim(0));
      // Only the constant 1 repeats: a size that is written otherwise than the target's (min(2, a) and b) is equal to
      // it.
      for (size_t i = 0; i < input_shape.size(); ++i)
        if (!input_shape[i].is(1)) result.strides[grown + i] = input.strides[i];
      return result;
    }
    case Op::kUnsqueeze:
    case Op::kSqueeze: {
      result.strides.clear();
      const std::vector<int64_t> axes = node.attrs.is("axes");
      auto listed = [&](size_t axis) {
        return std::find(axes.begin(), axes.end(), static_cast<int64_t>(axis)) != axes.end();
      };
      if (node.op == Op::kSqueeze) {
        for (size_t i = 0; i < input_shape.size(); ++i)
          if (!listed(i)) result.strides.push_back(input.strides[i]);
      } else {
        // A dim of size 1 may have any stride: the one that row-major code would expect keeps the layout recognisable.
        size_t next = 0;
        for (size_t i = 0; i < shape.size(); ++i) result.strides.push_back(listed(i) ? Dim(1) : input.strides[next++]);
      }
      return result;
    }
    default: LT_FAIL(name(node.op), " is no view");
  }
}

}  // namespace lowtide
