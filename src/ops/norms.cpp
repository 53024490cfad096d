// Normalisations and their gradients. Statistics are f32 (f64 for f64).
#include <algorithm>

#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

// The first and last dims of x, split before `axis`.
static Shape rows_of(const TensorType& x, int64_t axis) { return {x.shape.begin(), x.shape.begin() + axis}; }
static Shape columns_of(const TensorType& x, int64_t axis) { return {x.shape.begin() + axis, x.shape.end()}; }
static TensorType statistics(const TensorType& x, Shape shape) { return {statistics_dtype(x.dtype), std::move(shape)}; }

static Shape channels_of(const InferArgs& args, size_t input) {
  check_float(args, input);
  check_rank_at_least(args, input, 2);
  return {args.in(input).shape[1]};
}

// y = (x - mean)*inv_std*weight + bias over dims [axis, rank)
std::vector<TensorType> infer_layer_norm(const InferArgs& args) {
  const TensorType& x = args.in(0);
  check_float(args, 0);
  const int64_t axis = axis_attr(args, "axis", rank(x));
  check_like_first(args, 1, "weight", columns_of(x, axis));
  check_like_first(args, 2, "bias", columns_of(x, axis));
  return {x, statistics(x, rows_of(x, axis)), statistics(x, rows_of(x, axis))};
}

std::vector<TensorType> infer_layer_norm_grad(const InferArgs& args) {
  const TensorType& x = args.in(1);
  const int64_t axis = axis_attr(args, "axis", rank(x));
  check_like_first(args, 1, "x", args.in(0).shape);
  check_shape(args, 2, "mean", rows_of(x, axis));
  check_shape(args, 3, "inv_std", rows_of(x, axis));
  check_like_first(args, 4, "weight", columns_of(x, axis));
  const TensorType parameter{x.dtype, columns_of(x, axis)};
  return {x, parameter, parameter};
}

// y = x*inv_std*weight, inv_std = 1/rms(x), over dims [axis, rank)
std::vector<TensorType> infer_rms_norm(const InferArgs& args) {
  const TensorType& x = args.in(0);
  check_float(args, 0);
  const int64_t axis = axis_attr(args, "axis", rank(x));
  check_like_first(args, 1, "weight", columns_of(x, axis));
  return {x, statistics(x, rows_of(x, axis))};
}

std::vector<TensorType> infer_rms_norm_grad(const InferArgs& args) {
  const TensorType& x = args.in(1);
  const int64_t axis = axis_attr(args, "axis", rank(x));
  check_like_first(args, 1, "x", args.in(0).shape);
  check_shape(args, 2, "inv_std", rows_of(x, axis));
  check_like_first(args, 3, "weight", columns_of(x, axis));
  return {x, {x.dtype, columns_of(x, axis)}};
}

static Shape groups_of(const InferArgs& args, const TensorType& x) {
  const int64_t groups = constant_attr(args, "num_groups");
  const Dim& channels = x.shape[1];
  LT_INFER_CHECK(args, groups >= 1 && (!channels.is_constant() || channels.constant() % groups == 0),
                 "num_groups=", groups, " does not divide the channels of ", to_string(x));
  return {x.shape[0], Dim(groups)};
}

// as LayerNormalization, over the channels of a group and all later dims
std::vector<TensorType> infer_group_norm(const InferArgs& args) {
  const TensorType& x = args.in(0);
  const Shape channels = channels_of(args, 0);
  check_like_first(args, 1, "weight", channels);
  check_like_first(args, 2, "bias", channels);
  const TensorType per_group = statistics(x, groups_of(args, x));
  return {x, per_group, per_group};
}

std::vector<TensorType> infer_group_norm_grad(const InferArgs& args) {
  const TensorType& x = args.in(1);
  const Shape channels = channels_of(args, 1);
  check_like_first(args, 1, "x", args.in(0).shape);
  check_shape(args, 2, "mean", groups_of(args, x));
  check_shape(args, 3, "inv_std", groups_of(args, x));
  check_like_first(args, 4, "weight", channels);
  return {x, {x.dtype, channels}, {x.dtype, channels}};
}

// training mode: statistics of the batch over all dims but the channels
std::vector<TensorType> infer_batch_norm(const InferArgs& args) {
  const TensorType& x = args.in(0);
  const Shape channels = channels_of(args, 0);
  constexpr std::string_view kNames[] = {"x", "weight", "bias", "running_mean", "running_var"};
  for (size_t i = 1; i < args.inputs.size(); ++i)
    if (args.has(i)) check_shape(args, i, kNames[i], channels);
  LT_INFER_CHECK(args, args.has(3) == args.has(4), "running_mean and running_var come together");
  const TensorType saved = statistics(x, channels);
  return {x, saved, saved, args.has(3) ? args.in(3) : no_output(), args.has(4) ? args.in(4) : no_output()};
}

std::vector<TensorType> infer_batch_norm_grad(const InferArgs& args) {
  const TensorType& x = args.in(1);
  const Shape channels = channels_of(args, 1);
  check_like_first(args, 1, "x", args.in(0).shape);
  check_shape(args, 2, "mean", channels);
  check_shape(args, 3, "inv_std", channels);
  if (args.has(4)) check_shape(args, 4, "weight", channels);
  const TensorType parameter{args.has(4) ? args.in(4).dtype : x.dtype, channels};
  return {x, parameter, parameter};
}

// Whether dy flows into the first output. The statistics are for the backward only; running ones (from the fourth on),
// which later code may read, have no gradient.
static bool flows_into_first(const GradContext& c) {
  for (size_t i = 1; i < std::min<size_t>(3, c.node().outputs.size()); ++i)
    LT_USER_CHECK(ErrorKind::kUnsupported, !c.dy(i),
                  with_origin(concat(name(c.node().op), ": no gradient through its statistics"), c.node().origin));
  return c.dy(0).valid();
}

// y = x*scale + bias in each gradient: dx needs the weight, dx and dweight need x and the statistics, dbias needs dy
// alone.
static void grad_affine_norm(GradContext& c, Op grad_op, Attrs attrs, const std::vector<int64_t>& bias_reduction) {
  if (!flows_into_first(c)) return;
  if (!c.wants(0) && !c.wants(1)) {
    if (c.wants(2)) c.set(2, c.b().reduce(Op::kReduceSum, c.dy(), bias_reduction, false));
    return;
  }
  std::vector<ValueId> operands{c.dy(), c.in(0), c.out(1), c.out(2)};
  if (c.wants(0) && c.in(1)) operands.push_back(c.in(1));
  const NodeId grad = c.b().node(grad_op, std::move(operands), std::move(attrs), {c.wants(0), c.wants(1), c.wants(2)});
  for (size_t i = 0; i < 3; ++i)
    if (c.wants(i)) c.set(i, c.graph().node(grad).outputs[i]);
}

static std::vector<int64_t> axes_but(int64_t rank, int64_t begin, int64_t end) {
  std::vector<int64_t> axes;
  for (int64_t i = 0; i < rank; ++i)
    if (i < begin || i >= end) axes.push_back(i);
  return axes;
}

void grad_layer_norm(GradContext& c) {
  const int64_t axis = c.attrs().i("axis"), dims = rank(c.type(c.in(0)));
  grad_affine_norm(c, Op::kLayerNormalizationGrad, {{"axis", axis}}, axes_but(dims, axis, dims));
}

void grad_group_norm(GradContext& c) {
  grad_affine_norm(c, Op::kGroupNormalizationGrad, {{"num_groups", c.attrs().dim("num_groups")}},
                   axes_but(rank(c.type(c.in(0))), 1, 2));
}

void grad_batch_norm(GradContext& c) {
  grad_affine_norm(c, Op::kBatchNormalizationGrad, {}, axes_but(rank(c.type(c.in(0))), 1, 2));
}

void grad_rms_norm(GradContext& c) {
  if (!flows_into_first(c)) return;
  std::vector<ValueId> operands{c.dy(), c.in(0), c.out(1)};
  if (c.wants(0) && c.in(1)) operands.push_back(c.in(1));
  const NodeId grad = c.b().node(Op::kSimplifiedLayerNormalizationGrad, std::move(operands),
                                 {{"axis", c.attrs().dim("axis")}}, {c.wants(0), c.wants(1)});
  for (size_t i = 0; i < 2; ++i)
    if (c.wants(i)) c.set(i, c.graph().node(grad).outputs[i]);
}

void grad_softmax(GradContext& c) { c.set(0, c.b().op(Op::kSoftmaxGrad, {c.dy(), c.out(0)}, c.attrs())); }

void grad_log_softmax(GradContext& c) { c.set(0, c.b().op(Op::kLogSoftmaxGrad, {c.dy(), c.out(0)}, c.attrs())); }

}  // namespace lowtide
