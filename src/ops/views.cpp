// Views: the result has x's bytes.
#include <algorithm>

#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

// y = x in row-major order under another shape
std::vector<TensorType> infer_reshape(const InferArgs& args) {
  const TensorType& x = args.in(0);
  const Shape& shape = args.attrs.ints("shape");
  for (const Dim& size : shape)
    LT_INFER_CHECK(args, !size.is_constant() || size.constant() >= 0, "shape ", to_string(shape),
                   " has a negative size");
  LT_INFER_CHECK(args, dims_agree(numel(x.shape), numel(shape), args.ranges), "element counts differ: ", to_string(x),
                 " and shape ", to_string(shape));
  return {{x.dtype, shape}};
}

// y[i_0 ..] = x[..], dim i of y is dim perm[i] of x
std::vector<TensorType> infer_transpose(const InferArgs& args) {
  const TensorType& x = args.in(0);
  const std::vector<int64_t> perm = constants_attr(args, "perm");
  std::vector<bool> seen(x.shape.size());
  bool valid = perm.size() == x.shape.size();
  TensorType y{x.dtype, {}};
  for (size_t i = 0; valid && i < perm.size(); ++i) {
    valid = perm[i] >= 0 && perm[i] < rank(x) && !seen[static_cast<size_t>(perm[i])];
    if (!valid) break;
    seen[static_cast<size_t>(perm[i])] = true;
    y.shape.push_back(x.shape[static_cast<size_t>(perm[i])]);
  }
  LT_INFER_CHECK(args, valid, "perm=[", join(perm, ", "), "] is no permutation of the dims of ", to_string(x));
  return {y};
}

// y = x[.., start:end:step, ..] on one axis
std::vector<TensorType> infer_slice(const InferArgs& args) {
  TensorType y = args.in(0);
  const int64_t axis = axis_attr(args, "axis", rank(y));
  y.shape[static_cast<size_t>(axis)] = sliced_size(args, args.in(0), axis);
  return {y};
}

std::vector<TensorType> infer_expand(const InferArgs& args) {
  const TensorType& x = args.in(0);
  const Shape& shape = args.attrs.ints("shape");
  LT_INFER_CHECK(args, broadcasts_to(x.shape, shape, args.ranges), to_string(x), " does not broadcast to ",
                 to_string(shape));
  return {{x.dtype, shape}};
}

std::vector<TensorType> infer_unsqueeze(const InferArgs& args) {
  TensorType y = args.in(0);
  const int64_t result_rank = rank(y) + static_cast<int64_t>(args.attrs.ints("axes").size());
  for (int64_t axis : axes_attr(args, "axes", result_rank)) y.shape.insert(y.shape.begin() + axis, Dim(1));
  return {y};
}

std::vector<TensorType> infer_squeeze(const InferArgs& args) {
  TensorType y = args.in(0);
  std::vector<int64_t> axes = axes_attr(args, "axes", rank(y));
  std::reverse(axes.begin(), axes.end());
  for (int64_t axis : axes) {
    LT_INFER_CHECK(args, dims_agree(y.shape[static_cast<size_t>(axis)], 1, args.ranges), "axis ", axis, " of ",
                   to_string(args.in(0)), " has not size 1");
    y.shape.erase(y.shape.begin() + axis);
  }
  return {y};
}

void grad_identity(GradContext& c) { c.set(0, c.dy()); }

void grad_overwrite(GradContext& c) {
  const size_t heir = c.node().attrs.b("passes") ? 1 : 0;
  if (c.wants(heir)) c.set(heir, c.dy());
}

void grad_reshape(GradContext& c) { c.set(0, c.b().reshape(c.dy(), c.type(c.in(0)).shape)); }

void grad_transpose(GradContext& c) {
  const std::vector<int64_t> perm = c.attrs().is("perm");
  std::vector<int64_t> inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  c.set(0, c.b().transpose(c.dy(), inverse));
}

// Zeros around dy; between its elements where the slice has a step.
void grad_slice(GradContext& c) {
  const Shape& shape = c.type(c.in(0)).shape;
  const Attrs& attrs = c.attrs();
  if (!attrs.dim("step").is(1)) {
    const ValueId zeros = c.b().full(shape, 0.0, c.type(c.in(0)).dtype);
    return c.set(0, c.b().op(Op::kSliceScatter, {zeros, c.dy()}, attrs));
  }
  const size_t axis = static_cast<size_t>(attrs.i("axis"));
  c.set(0, c.b().pad_axis(c.dy(), static_cast<int64_t>(axis), attrs.dim("start"), shape[axis] - attrs.dim("end")));
}

void grad_expand(GradContext& c) { c.set(0, c.b().reduce_to(c.dy(), c.type(c.in(0)).shape)); }

void grad_unsqueeze(GradContext& c) { c.set(0, c.b().squeeze(c.dy(), c.attrs().is("axes"))); }

void grad_squeeze(GradContext& c) { c.set(0, c.b().unsqueeze(c.dy(), c.attrs().is("axes"))); }

}  // namespace lowtide
