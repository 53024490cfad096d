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

// A reduced value (y or dy) with its reduced axes back, as size 1.
static ValueId kept(GradContext& c, ValueId reduced) {
  return c.attrs().b("keepdims") ? reduced : c.b().unsqueeze(reduced, c.attrs().is("axes"));
}

void grad_reduce_sum(GradContext& c) { c.set(0, c.b().expand(kept(c, c.dy()), c.type(c.in(0)).shape)); }

// dx = dy/count
void grad_reduce_mean(GradContext& c) {
  Builder& b = c.b();
  const TensorType& x = c.type(c.in(0));
  Dim count = 1;
  for (int64_t axis : c.attrs().is("axes")) count = count * x.shape[static_cast<size_t>(axis)];
  // No count of 16 bits: 1001 is none of them, and f16 ends at 65504.
  const ValueId share = b.div(c.widened(c.dy()), b.scalar_dim(count, opmath(x.dtype)));
  c.set(0, b.expand(kept(c, b.cast(share, x.dtype)), x.shape));
}

// dx = dy/(number of extremes) at every extreme. Without nan_shares a NaN has no extreme, and 0/0 goes to all.
static void grad_extreme(GradContext& c) {
  Builder& b = c.b();
  const bool nan_shares = c.attrs().b("nan_shares", false);
  ValueId hit = b.op(Op::kEqual, {c.in(0), kept(c, c.out(0))});
  if (nan_shares) hit = b.op(Op::kOr, {hit, b.op(Op::kIsNaN, {c.in(0)})});
  const ValueId hits = b.cast(hit, b.dtype(c.dy()));
  const ValueId share = b.div(kept(c, c.dy()), b.reduce(Op::kReduceSum, hits, c.attrs().is("axes"), true));
  c.set(0, nan_shares ? b.op(Op::kWhere, {hit, share, b.scalar_like(0, share)}) : b.mul(share, hits));
}
void grad_reduce_max(GradContext& c) { grad_extreme(c); }
void grad_reduce_min(GradContext& c) { grad_extreme(c); }

// dx_i = dy * product of the others: with zeros replaced by one, product/x_i, and nothing where another element is
// zero.
void grad_reduce_prod(GradContext& c) {
  Builder& b = c.b();
  const ValueId x = c.in(0);
  const std::vector<int64_t> axes = c.attrs().is("axes");
  const ValueId is_zero = b.op(Op::kEqual, {x, b.scalar_like(0, x)});
  const ValueId nonzero = b.op(Op::kWhere, {is_zero, b.scalar_like(1, x), x});
  const ValueId product = b.reduce(Op::kReduceProd, nonzero, axes, true);
  const ValueId zero_count = b.cast(is_zero, b.dtype(x));
  const ValueId other_zeros = b.sub(b.reduce(Op::kReduceSum, zero_count, axes, true), zero_count);
  const ValueId others = b.div(b.mul(kept(c, c.dy()), product), nonzero);
  c.set(0, b.op(Op::kWhere, {b.op(Op::kGreater, {other_zeros, b.scalar_like(0, x)}), b.scalar_like(0, x), others}));
}

// dx = x*dy/y, 0 where the norm is 0
void grad_reduce_l2(GradContext& c) {
  Builder& b = c.b();
  const ValueId y = kept(c, c.out(0)), zero = b.scalar_like(0, y);
  const ValueId ratio = b.op(Op::kWhere, {b.op(Op::kEqual, {y, zero}), zero, b.div(kept(c, c.dy()), y)});
  c.set(0, b.mul(c.in(0), ratio));
}

// dx = dy*exp(x - y)
void grad_reduce_log_sum_exp(GradContext& c) {
  Builder& b = c.b();
  c.set(0, b.mul(b.op(Op::kExp, {b.sub(c.in(0), kept(c, c.out(0)))}), kept(c, c.dy())));
}

void grad_cum_sum(GradContext& c) {
  Attrs attrs = c.attrs();
  attrs.set("reverse", !attrs.b("reverse", false));
  c.set(0, c.b().op(Op::kCumSum, {c.dy()}, std::move(attrs)));
}

// dy back to where the values came from
static void grad_of_picked(GradContext& c) {
  if (!c.dy()) return;
  const TensorType& x = c.type(c.in(0));
  const ValueId zeros = c.b().full(x.shape, 0.0, x.dtype);
  c.set(0, c.b().op(Op::kScatterElements, {zeros, c.out(1), c.dy()},
                    {{"axis", c.attrs().dim("axis")}, {"reduction", "none"}}));
}
void grad_top_k(GradContext& c) { grad_of_picked(c); }
void grad_sort(GradContext& c) { grad_of_picked(c); }

}  // namespace lowtide
