// Activation functions.
#include <cmath>

#include "lower/targets.h"

namespace lowtide {

static ValueId self(Call& c) { return c.operand("self", c.dtype()); }

bool lower_gelu(Call& c) {
  return c.result(c.b.op(c.text("approximate", "none") == "tanh" ? Op::kFastGelu : Op::kGelu, {self(c)}));
}

bool lower_leaky_relu(Call& c) {
  return c.result(c.b.op(Op::kLeakyRelu, {self(c)}, {{"alpha", c.real("negative_slope", 0.01)}}));
}

static bool elu(Call& c, double alpha, double scale, double input_scale) {
  return c.result(c.b.op(Op::kElu, {self(c)}, {{"alpha", alpha}, {"scale", scale}, {"input_scale", input_scale}}));
}
bool lower_elu(Call& c) { return elu(c, c.real("alpha", 1), c.real("scale", 1), c.real("input_scale", 1)); }
// The constants of Klambauer et al. 2017, as PyTorch has them.
bool lower_selu(Call& c) { return elu(c, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1); }
bool lower_celu(Call& c) {
  const double alpha = c.real("alpha", 1);
  return elu(c, alpha, 1, 1 / alpha);
}

bool lower_softplus(Call& c) {
  return c.result(
      c.b.op(Op::kSoftplus, {self(c)}, {{"beta", c.real("beta", 1)}, {"threshold", c.real("threshold", 20)}}));
}

// log(sigmoid(x)) = -softplus(-x), without the linear part's cut.
bool lower_log_sigmoid(Call& c) {
  const ValueId soft = c.b.op(Op::kSoftplus, {c.b.neg(self(c))}, {{"beta", 1.0}, {"threshold", 40.0}});
  return c.result(c.b.neg(soft));
}

// The first half times the sigmoid of the second, which is not rounded to 16 bits.
bool lower_glu(Call& c) {
  const ValueId x = self(c);
  const int64_t axis = c.axis("dim", c.b.rank(x), -1);
  const Dim half = c.shape()[static_cast<size_t>(axis)];
  const auto part = [&](const Dim& first) {
    return c.b.cast(c.b.slice(x, axis, first, first + half), opmath(c.dtype()));
  };
  const ValueId gate = c.b.op(Op::kSigmoid, {part(half)});
  return c.result(c.b.mul(part(0), gate));
}

bool lower_threshold(Call& c) {
  const ValueId x = self(c);
  const ValueId within = c.b.op(Op::kLessOrEqual, {x, c.constant(c.number("threshold"), c.dtype())});
  return c.result(c.b.op(Op::kWhere, {within, c.constant(c.number("value"), c.dtype()), x}));
}

// Outside training the slope is the middle of its range.
bool lower_rrelu(Call& c) {
  if (c.flag("training")) return false;
  return c.result(
      c.b.op(Op::kLeakyRelu, {self(c)}, {{"alpha", (c.real("lower", 1.0 / 8) + c.real("upper", 1.0 / 3)) / 2}}));
}

bool lower_hardshrink(Call& c) {
  const ValueId x = self(c), limit = c.constant(c.number("lambd"), c.dtype());
  const ValueId within = c.b.op(Op::kLessOrEqual, {c.b.op(Op::kAbs, {x}), limit});
  return c.result(c.b.op(Op::kWhere, {within, c.b.scalar_like(0, x), x}));
}

// What lies beyond the bounds; between them nothing comes back, whatever the incoming gradient is.
bool lower_softshrink(Call& c) {
  const ValueId x = self(c);
  const double limit = c.real("lambd", 0.5);
  const ValueId within = c.b.op(Op::kLessOrEqual, {c.b.op(Op::kAbs, {x}), c.constant(limit, c.dtype())});
  const ValueId beyond = c.b.sub(x, c.b.op(Op::kClip, {x}, {{"min", -limit}, {"max", limit}}));
  return c.result(c.b.op(Op::kWhere, {within, c.b.scalar_like(0, x), beyond}));
}

// One slope, or one for each channel (dim 1).
bool lower_prelu(Call& c) {
  const ValueId x = self(c);
  ValueId slope = c.operand("weight", c.dtype());
  if (c.b.rank(slope) == 1 && c.b.rank(x) >= 2) {
    Shape shape(static_cast<size_t>(c.b.rank(x)), Dim(1));
    shape[1] = c.b.shape(slope)[0];
    slope = c.b.reshape(slope, shape);
  } else if (c.b.rank(x) == 0) {
    slope = c.b.reshape(slope, {});
  }
  const ValueId positive = c.b.op(Op::kGreater, {x, c.b.scalar_like(0, x)});
  return c.result(c.b.op(Op::kWhere, {positive, x, c.b.mul(x, slope)}));
}

}  // namespace lowtide
