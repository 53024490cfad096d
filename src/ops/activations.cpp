// Gradients of functions of one operand. A rule reads y where y is enough, else x.
#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

// A path that carries no slope; build_gradient still gives the inputs behind it zeros, as PyTorch does.
void grad_zero(GradContext&) {}

void grad_cast(GradContext& c) { c.set(0, c.b().cast(c.dy(), c.type(c.in(0)).dtype)); }

void grad_abs(GradContext& c) { c.set(0, c.b().mul(c.dy(), c.b().op(Op::kSign, {c.in(0)}))); }

void grad_neg(GradContext& c) { c.set(0, c.b().neg(c.dy())); }

void grad_exp(GradContext& c) { c.set(0, c.b().mul(c.dy(), c.out(0))); }

// dx = dy/x
void grad_log(GradContext& c) { c.set(0, c.b().div(c.dy(), c.in(0))); }

// dx = dy/(1 + x)
void grad_log1p(GradContext& c) { c.set(0, c.b().div(c.dy(), c.b().add(c.in(0), 1.0))); }

// dx = dy*(y + 1)
void grad_expm1(GradContext& c) { c.set(0, c.b().mul(c.dy(), c.b().add(c.out(0), 1.0))); }

// dx = dy/(2y)
void grad_sqrt(GradContext& c) { c.set(0, c.b().div(c.dy(), c.b().mul(c.out(0), 2.0))); }

// dx = -dy*y^3/2
void grad_rsqrt(GradContext& c) {
  Builder& b = c.b();
  const ValueId y = c.widened(c.out(0));
  c.set_rounded(0, b.mul(b.mul(c.widened(c.dy()), b.mul(b.mul(y, y), y)), -0.5));
}

// dx = -dy*y^2
void grad_reciprocal(GradContext& c) {
  Builder& b = c.b();
  c.set(0, b.neg(b.mul(c.dy(), b.mul(c.out(0), c.out(0)))));
}

void grad_sin(GradContext& c) { c.set(0, c.b().mul(c.dy(), c.b().op(Op::kCos, {c.in(0)}))); }

void grad_cos(GradContext& c) { c.set(0, c.b().neg(c.b().mul(c.dy(), c.b().op(Op::kSin, {c.in(0)})))); }

// dx = dy*(1 + y^2)
void grad_tan(GradContext& c) {
  Builder& b = c.b();
  c.set(0, b.mul(c.dy(), b.add(b.mul(c.out(0), c.out(0)), 1.0)));
}

// dx = dy/(1 + x^2)
void grad_atan(GradContext& c) {
  Builder& b = c.b();
  c.set(0, b.div(c.dy(), b.add(b.mul(c.in(0), c.in(0)), 1.0)));
}

void grad_tanh(GradContext& c) { c.set(0, c.b().op(Op::kTanhGrad, {c.dy(), c.out(0)})); }

void grad_sigmoid(GradContext& c) { c.set(0, c.b().op(Op::kSigmoidGrad, {c.dy(), c.out(0)})); }

// dx = dy*2/sqrt(pi)*exp(-x^2)
void grad_erf(GradContext& c) {
  Builder& b = c.b();
  constexpr double kTwoOverRootPi = 1.1283791670955126;
  const ValueId bell = b.op(Op::kExp, {b.neg(b.mul(c.in(0), c.in(0)))});
  c.set(0, b.mul(c.dy(), b.mul(bell, kTwoOverRootPi)));
}

void grad_lgamma(GradContext& c) { c.set(0, c.b().mul(c.dy(), c.b().op(Op::kDigamma, {c.in(0)}))); }
void grad_digamma(GradContext& c) { c.set(0, c.b().mul(c.dy(), c.b().op(Op::kTrigamma, {c.in(0)}))); }

void grad_relu(GradContext& c) { c.set(0, c.b().op(Op::kReluGrad, {c.dy(), c.out(0)})); }

// dx = x > 0 ? dy : alpha*dy; y has x's sign where alpha is positive
void grad_leaky_relu(GradContext& c) {
  Builder& b = c.b();
  const double alpha = c.attrs().f("alpha");
  const ValueId signed_like_x = alpha > 0 ? c.out(0) : c.in(0);
  const ValueId positive = b.op(Op::kGreater, {signed_like_x, b.scalar_like(0, signed_like_x)});
  c.set(0, b.op(Op::kWhere, {positive, c.dy(), b.mul(c.dy(), alpha)}));
}

void grad_huber(GradContext& c) {
  const double alpha = c.attrs().f("alpha");
  const ValueId slope = c.b().op(Op::kClip, {c.widened(c.in(0))}, {{"min", -alpha}, {"max", alpha}});
  c.set_rounded(0, c.b().mul(c.widened(c.dy()), slope));
}

// dx = x > 0 ? scale*dy : scale*alpha*input_scale*exp(input_scale*x)*dy
void grad_elu(GradContext& c) {
  Builder& b = c.b();
  const double scale = c.attrs().f("scale"), input_scale = c.attrs().f("input_scale");
  const auto times = [&](ValueId x, double factor) { return factor == 1.0 ? x : b.mul(x, factor); };
  const ValueId x = c.widened(c.in(0)), dy = c.widened(c.dy());
  const ValueId positive = b.op(Op::kGreater, {c.in(0), b.scalar_like(0, c.in(0))});
  const ValueId slope = times(b.op(Op::kExp, {times(x, input_scale)}), c.attrs().f("alpha") * input_scale * scale);
  const auto rounded = [&](ValueId grad) { return b.cast(grad, b.dtype(c.in(0))); };
  c.set(0, b.op(Op::kWhere, {positive, rounded(times(dy, scale)), rounded(b.mul(dy, slope))}));
}

// dx = beta*x > threshold ? dy : dy*sigmoid(beta*x)
void grad_softplus(GradContext& c) {
  Builder& b = c.b();
  const double beta = c.attrs().f("beta");
  const ValueId x = c.widened(c.in(0)), scaled = beta == 1.0 ? x : b.mul(x, beta);
  const ValueId curved = b.mul(c.widened(c.dy()), b.op(Op::kSigmoid, {scaled}));
  // Where the sigmoid is 1 in every dtype nothing changes.
  if (c.attrs().f("threshold") >= 40) return c.set_rounded(0, curved);
  const ValueId linear = b.op(Op::kGreater, {scaled, b.scalar_like(c.attrs().f("threshold"), scaled)});
  c.set(0, b.op(Op::kWhere, {linear, c.dy(), b.cast(curved, b.dtype(c.in(0)))}));
}

void grad_gelu(GradContext& c) { c.set(0, c.b().op(Op::kGeluGrad, {c.dy(), c.in(0)})); }

void grad_swish(GradContext& c) { c.set(0, c.b().op(Op::kSwishGrad, {c.dy(), c.in(0)})); }

void grad_quick_gelu(GradContext& c) { c.set(0, c.b().op(Op::kQuickGeluGrad, {c.dy(), c.in(0)}, c.attrs())); }

// dx = -3 < x < 3 ? dy/6 : 0, with the sixth that PyTorch has for all dtypes
void grad_hard_sigmoid(GradContext& c) {
  Builder& b = c.b();
  const ValueId x = c.in(0);
  const ValueId inside =
      b.op(Op::kAnd, {b.op(Op::kGreater, {x, b.scalar_like(-3, x)}), b.op(Op::kLess, {x, b.scalar_like(3, x)})});
  c.set(0, b.op(Op::kWhere, {inside, b.mul(c.dy(), 1.0F / 6), b.scalar_like(0, c.dy())}));
}

// dx = x <= -3 ? 0 : x < 3 ? dy*(x/3 + 1/2) : dy
void grad_hard_swish(GradContext& c) {
  Builder& b = c.b();
  const ValueId x = c.in(0);
  const ValueId middle = b.mul(c.widened(c.dy()), b.add(b.mul(c.widened(x), 1.0 / 3), 0.5));
  const ValueId below_three =
      b.op(Op::kWhere, {b.op(Op::kLess, {x, b.scalar_like(3, x)}), b.cast(middle, b.dtype(x)), c.dy()});
  c.set(0, b.op(Op::kWhere, {b.op(Op::kLessOrEqual, {x, b.scalar_like(-3, x)}), b.scalar_like(0, x), below_three}));
}

void grad_mish(GradContext& c) { c.set(0, c.b().op(Op::kMishGrad, {c.dy(), c.in(0)})); }

// dx = min <= x <= max ? dy : 0, or min < x < max ? dy : 0
void grad_clip(GradContext& c) {
  Builder& b = c.b();
  const ValueId x = c.in(0);
  const bool open = c.attrs().b("open", false);
  ValueId inside;
  if (c.attrs().has("min"))
    inside = b.op(open ? Op::kGreater : Op::kGreaterOrEqual, {x, b.scalar_like(c.attrs().f("min"), x)});
  if (c.attrs().has("max")) {
    const ValueId below = b.op(open ? Op::kLess : Op::kLessOrEqual, {x, b.scalar_like(c.attrs().f("max"), x)});
    inside = inside ? b.op(Op::kAnd, {inside, below}) : below;
  }
  c.set(0, inside ? b.op(Op::kWhere, {inside, c.dy(), b.scalar_like(0, c.dy())}) : c.dy());
}

}  // namespace lowtide
