// Losses. `reduction` is PyTorch's enum: 0 none, 1 mean, 2 sum.
#include "lower/loss.h"

#include "ir/reads.h"
#include "lower/targets.h"
#include "ops/rule.h"

namespace lowtide {

static std::string reduction_name(Call& c) {
  switch (c.integer("reduction", 1)) {
    case 0: return "none";
    case 1: return "mean";
    default: return "sum";
  }
}

static ValueId reduce_all(Builder& b, ValueId x, Op op) {
  std::vector<int64_t> axes;
  for (int64_t axis = 0; axis < b.rank(x); ++axis) axes.push_back(axis);
  return axes.empty() ? x : b.reduce(op, x, axes, false);
}

bool reduced(Call& c, ValueId loss) {
  const std::string how = reduction_name(c);
  if (how == "none") return c.result(loss);
  if (how == "mean" && !is_float(c.b.dtype(loss))) c.unsupported("PyTorch has no mean of integers");
  return c.result(reduce_all(c.b, loss, how == "mean" ? Op::kReduceMean : Op::kReduceSum));
}

// ---- classes

// Per-class weights along the class dim of a value of `rank` dims.
static ValueId along_classes(Builder& b, ValueId weight, int64_t rank) {
  Shape shape(static_cast<size_t>(rank), Dim(1));
  shape[rank > 1 ? 1 : 0] = b.shape(weight)[0];
  return b.reshape(weight, shape);
}

// Targets that are probabilities: -sum_c target_c weight_c log_softmax(x)_c; the mean divides by the number of samples.
static bool soft_cross_entropy(Call& c) {
  Builder& b = c.b;
  const DType dtype = c.dtype();
  const ValueId x = c.operand("self", dtype);
  ValueId target = c.operand("target", dtype);
  const int64_t axis = b.rank(x) > 1 ? 1 : 0;
  const Dim classes = b.shape(x)[static_cast<size_t>(axis)];
  if (const double smoothing = c.real("label_smoothing", 0); smoothing > 0) {
    if (!classes.is_constant()) return false;
    target = b.add(b.mul(target, 1 - smoothing), smoothing / static_cast<double>(classes.constant()));
  }
  ValueId terms = b.mul(b.op(Op::kLogSoftmax, {x}, {{"axis", Dim(axis)}}), target);
  if (c.is_tensor("weight")) terms = b.mul(terms, along_classes(b, c.operand("weight", dtype), b.rank(x)));
  const ValueId loss = b.neg(b.reduce(Op::kReduceSum, terms, {axis}, false));
  return reduced(c, loss);
}

// Of operands x, target and perhaps weights.
static ValueId cross_entropy(Call& c, std::vector<ValueId> operands) {
  const ValueId loss = c.b.op(Op::kSoftmaxCrossEntropyLoss, std::move(operands),
                              {{"reduction", reduction_name(c)},
                               {"ignore_index", c.has("ignore_index") ? c.dim("ignore_index") : Dim(-100)},
                               {"label_smoothing", c.real("label_smoothing", 0)}});
  return c.b.cast(loss, c.dtype());
}

bool lower_cross_entropy(Call& c) {
  const DType dtype = c.dtype();
  if (is_float(c.b.dtype(c.tensor("target")))) return soft_cross_entropy(c);
  std::vector<ValueId> operands{c.operand("self", dtype), c.operand("target", DType::kI64)};
  if (c.is_tensor("weight")) operands.push_back(c.operand("weight", dtype));
  return c.result(cross_entropy(c, std::move(operands)));
}

// -weight[t] * x[t]; the mean divides by the summed weights of targets that are not ignored.
bool lower_nll_loss(Call& c) {
  Builder& b = c.b;
  const DType dtype = c.dtype();
  const ValueId x = c.operand("self", dtype), target = c.operand("target", DType::kI64);
  const int64_t axis = b.rank(x) > 1 ? 1 : 0;
  if (b.rank(target) + 1 != b.rank(x)) return false;
  // Of a log softmax over the classes it is the cross entropy.
  if (const NodeId softmax = producer(b.graph(), x, Op::kLogSoftmax);
      softmax && b.rank(x) > 1 && b.graph().node(softmax).attrs.i("axis") == 1) {
    std::vector<ValueId> operands{b.graph().node(softmax).inputs[0], target};
    if (c.is_tensor("weight")) operands.push_back(c.operand("weight", dtype));
    return c.result(cross_entropy(c, std::move(operands)));
  }
  const ValueId ignored = b.op(Op::kEqual, {target, c.constant(c.number("ignore_index"), DType::kI64)});
  const ValueId safe = b.op(Op::kWhere, {ignored, c.constant(Dim(0), DType::kI64), target});
  const ValueId zero = b.scalar(0, dtype);
  ValueId weight = c.is_tensor("weight") ? b.op(Op::kGather, {c.operand("weight", dtype), safe}, {{"axis", Dim(0)}})
                                         : b.scalar(1, dtype);
  weight = b.op(Op::kWhere, {ignored, zero, weight});
  const ValueId picked =
      b.squeeze(b.op(Op::kGatherElements, {x, b.unsqueeze(safe, {axis})}, {{"axis", Dim(axis)}}), {axis});
  const ValueId loss = b.neg(b.op(Op::kWhere, {ignored, zero, b.mul(picked, weight)}));
  if (reduction_name(c) != "mean") return reduced(c, loss);
  return c.result(b.div(reduce_all(b, loss, Op::kReduceSum), reduce_all(b, weight, Op::kReduceSum)));
}

// The mean is over sequences, each first divided by the length of its target.
bool lower_ctc_loss(Call& c) {
  Builder& b = c.b;
  const DType dtype = c.dtype();
  ValueId log_probs = c.tensor("log_probs"), targets = c.tensor("targets");
  if ((dtype != DType::kF32 && dtype != DType::kF64) || b.dtype(log_probs) != dtype) return false;
  if (is_float(b.dtype(targets)) || b.rank(targets) < 1 || b.rank(targets) > 2) return false;
  const bool is_one = b.rank(log_probs) == 2;
  if (is_one) log_probs = b.unsqueeze(log_probs, {1});
  if (b.rank(log_probs) != 3) return false;
  const Shape sequences{b.shape(log_probs)[1]};
  if (b.rank(targets) == 2 && b.shape(targets)[0] != sequences[0]) return false;
  const auto lengths = [&](std::string_view name) {
    const ValueId given = c.operand(name, DType::kI64);
    return is_one && b.rank(given) == 0 ? b.unsqueeze(given, {0}) : given;
  };
  const ValueId input_lengths = lengths("input_lengths"), target_lengths = lengths("target_lengths");
  if (b.shape(input_lengths) != sequences || b.shape(target_lengths) != sequences) return false;
  const Dim blank(c.integer("blank", 0)), classes = b.shape(log_probs)[2];
  if (classes.is_constant() && blank.constant() >= classes.constant()) return false;
  ValueId loss = b.op(Op::kCtcLoss, {log_probs, b.cast(targets, DType::kI64), input_lengths, target_lengths},
                      {{"blank", blank}, {"zero_infinity", c.flag("zero_infinity")}, {"normalised", true}});
  const std::string how = reduction_name(c);
  if (how == "none" && is_one) return c.result(b.squeeze(loss, {0}));
  if (how == "mean") {
    const ValueId length = b.op(Op::kMax, {target_lengths, c.constant(Dim(1), DType::kI64)});
    loss = b.div(loss, b.cast(length, dtype));
  }
  return reduced(c, loss);
}

// ---- regression

static ValueId difference(Call& c, DType dtype) {
  return c.b.sub(c.operand("self", dtype), c.operand("target", dtype));
}

// PyTorch rounds the difference to 16 bits, too.
bool lower_mse_loss(Call& c) {
  const ValueId d = difference(c, c.dtype());
  return reduced(c, c.b.mul(d, d));
}

bool lower_l1_loss(Call& c) { return reduced(c, c.b.op(Op::kAbs, {difference(c, c.dtype())})); }

static ValueId knee_loss(Call& c, double knee) {
  return c.b.op(Op::kHuber, {difference(c, opmath(c.dtype()))}, {{"alpha", knee}});
}

bool lower_smooth_l1_loss(Call& c) {
  if (!is_float(c.dtype())) return false;
  const double beta = c.real("beta", 1);
  if (beta == 0) return lower_l1_loss(c);
  const ValueId loss = knee_loss(c, beta);
  return reduced(c, beta == 1 ? loss : c.b.mul(loss, 1 / beta));
}
bool lower_huber_loss(Call& c) { return is_float(c.dtype()) && reduced(c, knee_loss(c, c.real("delta", 1))); }

// ---- probabilities

// (1 - t) x + (1 + (pos_weight - 1) t) softplus(-x), the stable form.
bool lower_bce_with_logits(Call& c) {
  Builder& b = c.b;
  const DType dtype = opmath(c.dtype());
  const ValueId x = c.operand("self", dtype), target = c.operand("target", dtype);
  const ValueId one = b.scalar(1, dtype);
  // Behind 40 softplus is its argument in every dtype.
  ValueId soft = b.op(Op::kSoftplus, {b.neg(x)}, {{"beta", 1.0}, {"threshold", 40.0}});
  if (c.is_tensor("pos_weight")) {
    const ValueId extra = b.sub(c.operand("pos_weight", dtype), one);
    soft = b.mul(b.add(one, b.mul(extra, target)), soft);
  }
  ValueId loss = b.add(b.mul(b.sub(one, target), x), soft);
  if (c.is_tensor("weight")) loss = b.mul(loss, c.operand("weight", dtype));
  return reduced(c, loss);
}

// Logarithms are bounded by -100, as in PyTorch.
bool lower_bce(Call& c) {
  Builder& b = c.b;
  const DType dtype = opmath(c.dtype());
  const ValueId x = c.operand("self", dtype), target = c.operand("target", dtype);
  const ValueId one = b.scalar(1, dtype);
  auto bounded_log = [&](ValueId p) { return b.op(Op::kClip, {b.op(Op::kLog, {p})}, {{"min", -100.0}}); };
  const ValueId hit = b.mul(target, bounded_log(x));
  const ValueId miss = b.mul(b.sub(one, target), bounded_log(b.sub(one, x)));
  ValueId loss = b.neg(b.add(hit, miss));
  if (c.is_tensor("weight")) loss = b.mul(loss, c.operand("weight", dtype));
  return reduced(c, loss);
}

// target (log target - x), or exp(target) (target - x); -target x where target is 0, whose own gradient is NaN in
// PyTorch and a number here.
bool lower_kl_div(Call& c) {
  Builder& b = c.b;
  const DType dtype = opmath(c.dtype());
  const ValueId x = c.operand("self", dtype), target = c.operand("target", dtype);
  if (c.flag("log_target")) return reduced(c, b.mul(b.op(Op::kExp, {target}), b.sub(target, x)));
  const ValueId is_zero = b.op(Op::kEqual, {target, b.scalar(0, dtype)});
  const ValueId safe = b.op(Op::kWhere, {is_zero, b.scalar(1, dtype), target});
  const ValueId loss = b.mul(target, b.sub(b.op(Op::kLog, {safe}), x));
  return reduced(c, loss);
}

// ---- angles

// x1 . x2 / (|x1| |x2|), each norm at least eps.
bool lower_cosine_similarity(Call& c) {
  Builder& b = c.b;
  const DType dtype = c.dtype();
  ValueId x = c.operand("x1", dtype), y = c.operand("x2", dtype);
  const int64_t rank = std::max(b.rank(x), b.rank(y));
  if (rank == 0) return false;
  // The norms run over the dims as they are broadcast.
  const Shape shape = broadcast(b.shape(x), b.shape(y));
  x = b.expand(x, shape);
  y = b.expand(y, shape);
  const int64_t axis = c.axis("dim", rank, 1);
  auto unit = [&](ValueId z) {
    const ValueId norm = b.reduce(Op::kReduceL2, z, {axis}, true);
    return b.div(z, b.op(Op::kClip, {norm}, {{"min", c.real("eps", 1e-8)}}));
  };
  const ValueId left = unit(x), right = unit(y);
  return c.result(b.reduce(Op::kReduceSum, b.mul(left, right), {axis}, false));
}

}  // namespace lowtide
