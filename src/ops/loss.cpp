// Cross-entropy over logits that keeps the log-sum-exp and no probabilities, and of a linear layer without its logits.
#include "ops/builder.h"
#include "ops/inference.h"
#include "opset/logit_panels.h"

namespace lowtide {

// Checks logits, labels and weight at these operand indices; returns the shape of the labels.
static Shape check_logits(const InferArgs& args, size_t logits, size_t labels, size_t weight) {
  const TensorType& scores = args.in(logits);
  check_float(args, logits);
  check_rank_at_least(args, logits, 1);
  check_word(args, "reduction", "mean, sum, none");
  const size_t class_axis = scores.shape.size() == 1 ? 0 : 1;
  Shape expected = scores.shape;
  expected.erase(expected.begin() + static_cast<int64_t>(class_axis));
  check_shape(args, labels, "labels", expected);
  LT_INFER_CHECK(args, args.in(labels).dtype == DType::kI64, "labels must be i64, are ", to_string(args.in(labels)));
  if (args.has(weight)) {
    check_same_dtype(args, logits, weight);
    check_shape(args, weight, "weight", {scores.shape[class_axis]});
  }
  return args.in(labels).shape;
}

// loss = -weight[label]*log softmax(logits)[label], summed, averaged or neither; of bf16 and f16 logits in f32
std::vector<TensorType> infer_cross_entropy(const InferArgs& args) {
  const Shape rows = check_logits(args, 0, 1, 2);
  const DType dtype = args.in(0).dtype;
  return {{statistics_dtype(dtype), args.attrs.s("reduction") == "none" ? rows : Shape{}},
          {statistics_dtype(dtype), rows}};
}

std::vector<TensorType> infer_cross_entropy_grad(const InferArgs& args) {
  const Shape rows = check_logits(args, 1, 2, 4);
  const DType loss = statistics_dtype(args.in(1).dtype);
  LT_INFER_CHECK(args, args.in(0).dtype == loss, "dloss must be ", name(loss), ", is ", to_string(args.in(0)));
  check_shape(args, 0, "dloss", args.attrs.s("reduction") == "none" ? rows : Shape{});
  check_shape(args, 3, "log_sum_exp", rows);
  return {args.in(1)};
}

// dlogits = dloss*weight*(softmax(logits) - onehot(labels)), the softmax from logits and their log-sum-exp
void grad_cross_entropy(GradContext& c) {
  const auto refuse = [&](bool refused, std::string_view what) {
    LT_USER_CHECK(ErrorKind::kUnsupported, !refused,
                  with_origin(concat("SoftmaxCrossEntropyLoss: no gradient ", what), c.node().origin));
  };
  refuse(c.dy(1).valid(), "through log_sum_exp");
  refuse(c.wants(2), "of the class weights");
  if (!c.wants(0)) return;
  std::vector<ValueId> operands{c.dy(), c.in(0), c.in(1), c.out(1)};
  if (c.in(2)) operands.push_back(c.in(2));
  c.set(0, c.b().op(Op::kSoftmaxCrossEntropyLossGrad, std::move(operands), c.attrs()));
}

std::vector<TensorType> infer_linear_cross_entropy(const InferArgs& args) {
  const TensorType &x = args.in(0), &weight = args.in(1);
  check_float(args, 0);
  for (size_t i : {size_t{0}, size_t{1}})
    LT_INFER_CHECK(args, rank(args.in(i)) == 2, i == 0 ? "x" : "weight", " must have 2 dims, is ",
                   to_string(args.in(i)));
  check_same_dtype(args, 0, 1);
  check_word(args, "reduction", "mean, sum");
  LT_INFER_CHECK(args, dims_agree(x.shape[1], weight.shape[1], args.ranges), "x is ", to_string(x),
                 ", of other columns than weight, ", to_string(weight));
  check_shape(args, 2, "labels", {x.shape[0]});
  LT_INFER_CHECK(args, args.in(2).dtype == DType::kI64, "labels must be i64, are ", to_string(args.in(2)));
  if (args.has(3)) {
    check_same_dtype(args, 0, 3);
    check_shape(args, 3, "bias", {weight.shape[0]});
  }
  return {{statistics_dtype(x.dtype), {}}, x, weight, args.has(3) ? args.in(3) : no_output()};
}

std::vector<TensorType> infer_linear_cross_entropy_grad(const InferArgs& args) {
  const TensorType& logits = args.in(1);
  check_float(args, 1);
  LT_INFER_CHECK(args, rank(logits) == 2, "logits must have 2 dims, are ", to_string(logits));
  check_word(args, "reduction", "mean, sum");
  check_float(args, 0);
  check_shape(args, 0, "dloss", {});
  check_shape(args, 2, "labels", {logits.shape[0]});
  check_shape(args, 3, "log_sum_exp", {logits.shape[0]});
  const TensorType& weight = args.in(4);
  LT_INFER_CHECK(args, rank(weight) == 2, "weight must have 2 dims, is ", to_string(weight));
  check_shape(args, 4, "weight", {logits.shape[1], weight.shape[1]});
  const TensorType dx{logits.dtype, {logits.shape[0], weight.shape[1]}};
  if (args.has(5)) check_shape(args, 5, "x", dx.shape);
  if (args.has(6)) check_shape(args, 6, "dlogits", logits.shape);
  return {dx, args.has(5) ? weight : no_output(), {logits.dtype, {logits.shape[1]}}};
}

// What does not fit in the gradient of `weight`, [c, rows]; see opset/logit_panels.h.
static Shape rest_of_logits(const Dim& rows, const TensorType& weight, DType gradient, DType logits) {
  const Dim& classes = weight.shape[0];
  const Dim gradient_row = weight.shape[1] * Dim(size_bytes(gradient) / size_bytes(logits));
  const Dim held = floordiv(classes * gradient_row, kLogitPanel * max(rows, gradient_row));
  return {classes - kLogitPanel * held, rows};
}

std::vector<TensorType> infer_panel_linear_cross_entropy(const InferArgs& args) {
  const DType computes = args.attrs.t("computes"), keeps = args.attrs.t("keeps");
  LT_INFER_CHECK(args, size_bytes(keeps) >= size_bytes(computes), "gradients of ", name(keeps), " are too small for ",
                 name(computes));
  std::vector<TensorType> types(args.inputs.size());
  std::vector<const TensorType*> operands(args.inputs.begin(), args.inputs.end());
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i] == nullptr || !is_float(operands[i]->dtype)) continue;
    types[i] = {computes, operands[i]->shape};
    operands[i] = &types[i];
  }
  const TensorType loss = infer_linear_cross_entropy({args.op, operands, args.attrs, args.ranges})[0];
  const TensorType &x = *operands[0], &weight = *operands[1];
  return {loss,
          {loss.dtype, {x.shape[0]}},
          {keeps, weight.shape},
          {computes, rest_of_logits(x.shape[0], weight, keeps, computes)}};
}

std::vector<TensorType> infer_panel_linear_cross_entropy_grad(const InferArgs& args) {
  const TensorType &weight = args.in(4), &x = args.in(5);
  for (size_t i : {size_t{4}, size_t{5}})
    LT_INFER_CHECK(args, rank(args.in(i)) == 2, i == 4 ? "weight" : "x", " must have 2 dims, is ",
                   to_string(args.in(i)));
  check_word(args, "reduction", "mean, sum");
  check_float(args, 0);
  check_shape(args, 0, "dloss", {});
  check_shape(args, 1, "head", weight.shape);
  check_shape(args, 2, "labels", {x.shape[0]});
  check_shape(args, 3, "log_sum_exp", {x.shape[0]});
  check_shape(args, 5, "x", {x.shape[0], weight.shape[1]});
  LT_INFER_CHECK(args, rank(args.in(6)) == 2, "rest must have 2 dims, is ", to_string(args.in(6)));
  return {x, {args.in(1).dtype, weight.shape}, {x.dtype, {weight.shape[0]}}};
}

// What forward has made for a gradient of 1, times the gradient.
void grad_linear_cross_entropy(GradContext& c) {
  constexpr size_t kOperands[] = {0, 1, 3};
  for (size_t i = 0; i < 3; ++i) {
    LT_CHECK(!c.dy(i + 1).valid(), "LinearCrossEntropyLoss: a gradient flows into a gradient");
    if (!c.wants(kOperands[i])) continue;
    const ValueId grad = c.out(i + 1);
    c.set(kOperands[i], c.b().mul(grad, c.b().cast(c.dy(), c.b().dtype(grad))));
  }
}

}  // namespace lowtide
