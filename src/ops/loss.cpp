// Cross-entropy over logits that keeps the log-sum-exp and no probabilities.
#include "ops/builder.h"
#include "ops/inference.h"

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

}  // namespace lowtide
