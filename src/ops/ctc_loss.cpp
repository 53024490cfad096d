// Connectionist temporal classification: the loss of sequences whose alignment is not known.
#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

// Checks log_probs at operand `first` and what follows it; returns the shape of the losses.
static Shape check_sequences(const InferArgs& args, size_t first) {
  const TensorType &log_probs = args.in(first), &targets = args.in(first + 1);
  check_float(args, first);
  LT_INFER_CHECK(args, rank(log_probs) == 3, "log_probs must have 3 dims, are ", to_string(log_probs));
  LT_INFER_CHECK(args, rank(targets) == 1 || rank(targets) == 2, "targets must have 1 or 2 dims, are ",
                 to_string(targets));
  const Shape sequences{log_probs.shape[1]};
  if (rank(targets) == 2) check_shape(args, first + 1, "targets", {sequences[0], targets.shape[1]});
  check_shape(args, first + 2, "input_lengths", sequences);
  check_shape(args, first + 3, "target_lengths", sequences);
  for (size_t i = first + 1; i < first + 4; ++i)
    LT_INFER_CHECK(args, args.in(i).dtype == DType::kI64, "targets and lengths must be i64, are ",
                   to_string(args.in(i)));
  const int64_t blank = constant_attr(args, "blank");
  LT_INFER_CHECK(args, blank >= 0 && range_of(log_probs.shape[2] - Dim(blank), args.ranges).high > 0, "blank=", blank,
                 " is no class of ", to_string(log_probs));
  return sequences;
}

std::vector<TensorType> infer_ctc_loss(const InferArgs& args) { return {{args.in(0).dtype, check_sequences(args, 0)}}; }

std::vector<TensorType> infer_ctc_loss_grad(const InferArgs& args) {
  check_same_dtype(args, 0, 1);
  check_shape(args, 0, "dloss", check_sequences(args, 1));
  return {args.in(1)};
}

// dlog_probs = -dloss*(the probability that a path is in this class at this step), exp(log_probs) more if `normalised`
void grad_ctc_loss(GradContext& c) {
  c.set(0, c.b().op(Op::kCtcLossGrad, {c.dy(), c.in(0), c.in(1), c.in(2), c.in(3)}, c.attrs()));
}

}  // namespace lowtide
