// Losses of distances and margins, of counts.
#include <cmath>
#include <numbers>

#include "lower/loss.h"
#include "lower/reductions.h"
#include "lower/targets.h"
#include "ops/rule.h"

namespace lowtide {

static ValueId floating(Call& c, std::string_view name) { return c.operand(name, c.dtype()); }

static ValueId positive_part(Builder& b, ValueId x) { return b.op(Op::kClip, {x}, {{"min", 0.0}}); }

static ValueId is(Builder& b, ValueId x, double number) { return b.op(Op::kEqual, {x, b.scalar_like(number, x)}); }

// max(0, margin - target (x1 - x2))
bool lower_margin_ranking_loss(Call& c) {
  Builder& b = c.b;
  const ValueId ahead = b.mul(floating(c, "target"), b.sub(floating(c, "input1"), floating(c, "input2")));
  return reduced(c, positive_part(b, b.add(b.neg(ahead), c.real("margin", 0))));
}

// x where the target is 1, max(0, margin - x) where it is -1; elsewhere PyTorch adds both.
bool lower_hinge_embedding_loss(Call& c) {
  Builder& b = c.b;
  const ValueId x = floating(c, "self"), target = floating(c, "target"), zero = b.scalar_like(0, x);
  const ValueId lack = positive_part(b, b.add(b.neg(x), c.real("margin", 1)));
  return reduced(
      c, b.add(b.op(Op::kWhere, {is(b, target, 1), zero, lack}), b.op(Op::kWhere, {is(b, target, -1), zero, x})));
}

// log(1 + exp(-target x))
bool lower_soft_margin_loss(Call& c) {
  Builder& b = c.b;
  const DType dtype = opmath(c.dtype());
  const ValueId product = b.mul(c.operand("target", dtype), c.operand("self", dtype));
  return reduced(c, b.op(Op::kLog1p, {b.op(Op::kExp, {b.neg(product)})}));
}

// 1 - cos(x1, x2) where the target is 1, max(0, cos - margin) where it is -1.
bool lower_cosine_embedding_loss(Call& c) {
  Builder& b = c.b;
  const ValueId x = floating(c, "input1"), y = floating(c, "input2"), target = floating(c, "target");
  const int64_t axis = b.rank(target);
  const auto dot = [&](ValueId u, ValueId v) { return b.reduce(Op::kReduceSum, b.mul(u, v), {axis}, false); };
  constexpr double kEpsilon = 1e-12;  // PyTorch's
  const ValueId squares = b.mul(b.add(dot(x, x), kEpsilon), b.add(dot(y, y), kEpsilon));
  const ValueId cosine = b.div(dot(x, y), b.op(Op::kSqrt, {squares})), zero = b.scalar_like(0, cosine);
  const ValueId apart = positive_part(b, b.add(cosine, -c.real("margin", 0)));
  return reduced(c, b.add(b.op(Op::kWhere, {is(b, target, 1), b.add(b.neg(cosine), 1), zero}),
                          b.op(Op::kWhere, {is(b, target, -1), apart, zero})));
}

// |x - y + eps| over the last dim; none where the norm has none.
static std::optional<ValueId> distance(Call& c, ValueId x, ValueId y, bool keepdim) {
  const ValueId d = c.b.add(c.b.sub(x, y), c.real("eps", 1e-6));
  if (c.b.rank(d) == 0) return std::nullopt;
  return norm(c.b, d, c.real("p", 2), {c.b.rank(d) - 1}, keepdim);
}

bool lower_pairwise_distance(Call& c) {
  const auto found = distance(c, floating(c, "x1"), floating(c, "x2"), c.flag("keepdim"));
  return found && c.result(*found);
}

// max(0, margin + |anchor - positive| - |anchor - negative|); swapped, the nearer of both to the negative counts.
bool lower_triplet_margin_loss(Call& c) {
  Builder& b = c.b;
  const ValueId anchor = floating(c, "anchor"), positive = floating(c, "positive"), negative = floating(c, "negative");
  const auto near = distance(c, anchor, positive, false), far = distance(c, anchor, negative, false);
  if (!near || !far) return false;
  ValueId apart = *far;
  if (c.flag("swap")) apart = b.op(Op::kMin, {apart, *distance(c, positive, negative, false)});
  return reduced(c, positive_part(b, b.add(b.sub(*near, apart), c.real("margin", 1))));
}

// exp(x) - target x, or x - target log(x + eps); `full` adds Stirling's formula for log(target!) above 1.
bool lower_poisson_nll_loss(Call& c) {
  Builder& b = c.b;
  const ValueId x = floating(c, "input"), target = floating(c, "target");
  const auto log = [&](ValueId value) { return b.op(Op::kLog, {value}); };
  ValueId loss = c.flag("log_input") ? b.sub(b.op(Op::kExp, {x}), b.mul(target, x))
                                     : b.sub(x, b.mul(target, log(b.add(x, c.real("eps", 1e-8)))));
  if (c.flag("full")) {
    const ValueId above = b.op(Op::kGreater, {target, b.scalar_like(1, target)});
    const ValueId safe = b.op(Op::kWhere, {above, target, b.scalar_like(1, target)});
    const ValueId half_log = b.mul(log(b.mul(safe, 2 * std::numbers::pi)), 0.5);
    const ValueId stirling = b.add(b.sub(b.mul(safe, log(safe)), safe), half_log);
    loss = b.add(loss, b.op(Op::kWhere, {above, stirling, b.scalar_like(0, loss)}));
  }
  return reduced(c, loss);
}

}  // namespace lowtide
