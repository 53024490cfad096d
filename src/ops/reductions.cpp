// Reductions over axes, running sums, sorting.
#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

static Shape reduced(const Shape& shape, const std::vector<int64_t>& axes, bool keepdims) {
  Shape result;
  size_t next = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool gone = next < axes.size() && axes[next] == static_cast<int64_t>(i);
    if (gone) ++next;
    if (!gone || keepdims) result.push_back(gone ? Dim(1) : shape[i]);
  }
  return result;
}

std::vector<TensorType> infer_reduce(const InferArgs& args) {
  const TensorType& x = args.in(0);
  const std::vector<int64_t> axes = axes_attr(args, "axes", rank(x));
  LT_INFER_CHECK(args, !axes.empty(), "axes must not be empty");
  if (args.op == Op::kReduceMean || args.op == Op::kReduceL2 || args.op == Op::kReduceLogSumExp) check_float(args, 0);
  return {{x.dtype, reduced(x.shape, axes, args.attrs.b("keepdims"))}};
}

std::vector<TensorType> infer_arg_reduce(const InferArgs& args) {
  const TensorType& x = args.in(0);
  const int64_t axis = axis_attr(args, "axis", rank(x));
  return {{DType::kI64, reduced(x.shape, {axis}, args.attrs.b("keepdims"))}};
}

std::vector<TensorType> infer_top_k(const InferArgs& args) {
  TensorType values = args.in(0);
  const int64_t axis = axis_attr(args, "axis", rank(values));
  const Dim& k = args.attrs.dim("k");
  Dim& size = values.shape[static_cast<size_t>(axis)];
  LT_INFER_CHECK(args, range_of(size - k, args.ranges).high >= 0 && range_of(k, args.ranges).high >= 0,
                 "k=", to_string(k), " is outside of axis ", axis, " of ", to_string(args.in(0)));
  size = k;
  return {values, {DType::kI64, values.shape}};
}

std::vector<TensorType> infer_sort(const InferArgs& args) {
  axis_attr(args, "axis", rank(args.in(0)));
  return {args.in(0), {DType::kI64, args.in(0).shape}};
}

}  // namespace lowtide
