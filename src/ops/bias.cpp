// Functions of x + bias in one node: activations, dropout, softmax. Each keeps x, never the sum.
#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

// Operand `bias` is one number per column of operand `x`.
static void check_column_bias(const InferArgs& args, size_t x, size_t bias) {
  check_float(args, x);
  if (!args.has(bias)) return;
  check_rank_at_least(args, x, 1);
  check_same_dtype(args, x, bias);
  check_shape(args, bias, "the bias", {args.in(x).shape.back()});
}

// y = gelu(x + bias)
std::vector<TensorType> infer_bias_gelu(const InferArgs& args) {
  check_column_bias(args, 0, 1);
  return {args.in(0)};
}

std::vector<TensorType> infer_bias_gelu_grad(const InferArgs& args) {
  check_column_bias(args, 1, 2);
  check_same_dtype(args, 1, 0);
  check_shape(args, 0, "dy", args.in(1).shape);
  return {args.in(1)};
}

// dx is that of the sum, so the bias gets dx summed over its rows.
static void set_sum_grads(GradContext& c, ValueId dx) {
  if (c.wants(0)) c.set(0, dx);
  if (c.wants(1)) c.set(1, c.b().reduce_to(dx, c.type(c.in(1)).shape));
}

static void grad_gelu_of_sum(GradContext& c, Op grad) {
  std::vector<ValueId> operands{c.dy(), c.in(0)};
  if (c.in(1)) operands.push_back(c.in(1));
  set_sum_grads(c, c.b().op(grad, std::move(operands)));
}

void grad_bias_gelu(GradContext& c) { grad_gelu_of_sum(c, Op::kBiasGeluGrad); }

void grad_fast_gelu(GradContext& c) { grad_gelu_of_sum(c, Op::kFastGeluGrad); }

// y = dropout(x + bias) + residual
std::vector<TensorType> infer_bias_dropout(const InferArgs& args) {
  check_column_bias(args, 0, 1);
  if (args.has(2)) check_like_first(args, 2, "the residual", args.in(0).shape);
  const double ratio = args.attrs.f("ratio");
  LT_INFER_CHECK(args, ratio >= 0 && ratio <= 1, "ratio must lie in [0, 1], is ", ratio);
  return {args.in(0)};
}

// The mask is drawn again: nothing is kept.
void grad_bias_dropout(GradContext& c) {
  if (c.wants(0) || c.wants(1)) set_sum_grads(c, c.b().op(Op::kDropoutGrad, {c.dy()}, c.attrs()));
  if (c.wants(2)) c.set(2, c.dy());
}

// y = softmax(x + bias)
std::vector<TensorType> infer_bias_softmax(const InferArgs& args) {
  const TensorType &x = args.in(0), &bias = args.in(1);
  check_float(args, 0);
  axis_attr(args, "axis", rank(x));
  check_same_dtype(args, 0, 1);
  LT_INFER_CHECK(args, broadcasts_to(bias.shape, x.shape, args.ranges), "the bias is ", to_string(bias),
                 " and does not broadcast to ", to_string(x));
  return {x};
}

void grad_bias_softmax(GradContext& c) { set_sum_grads(c, c.b().op(Op::kSoftmaxGrad, {c.dy(), c.out(0)}, c.attrs())); }

}  // namespace lowtide
