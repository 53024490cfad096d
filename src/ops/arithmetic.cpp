// Gradients of functions of several operands. Each gradient is summed down to its operand's shape.
#include <optional>

#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

// Gives operand `index` the sum of `grad` over what broadcasting repeated.
static void set_reduced(GradContext& c, size_t index, ValueId grad) {
  c.set(index, c.b().reduce_to(grad, c.type(c.in(index)).shape));
}

void grad_add(GradContext& c) {
  for (size_t i : {0, 1})
    if (c.wants(i)) set_reduced(c, i, c.dy());
}

// The sum first: it may be small.
void grad_sub(GradContext& c) {
  if (c.wants(0)) set_reduced(c, 0, c.dy());
  if (c.wants(1)) c.set(1, c.b().neg(c.b().reduce_to(c.dy(), c.type(c.in(1)).shape)));
}

void grad_mul(GradContext& c) {
  if (c.in(0) == c.in(1)) return c.set(0, c.b().mul(c.dy(), c.b().mul(c.in(0), 2.0)));
  for (size_t i : {0, 1})
    if (c.wants(i)) set_reduced(c, i, c.b().mul(c.dy(), c.in(1 - i)));
}

// da = dy/b,  db = -(dy/b)*y
void grad_div(GradContext& c) {
  Builder& b = c.b();
  const ValueId da = b.div(c.dy(), c.in(1));
  if (c.wants(0)) set_reduced(c, 0, da);
  if (c.wants(1)) c.set(1, b.neg(b.reduce_to(b.mul(da, c.out(0)), c.type(c.in(1)).shape)));
}

// y = a - b*floor(a/b), trunc for fmod
void grad_mod(GradContext& c) {
  Builder& b = c.b();
  if (c.wants(0)) set_reduced(c, 0, c.dy());
  if (!c.wants(1)) return;
  // A quotient of 16 bits is not rounded to an integer of its own.
  const ValueId quotient =
      b.op(c.attrs().b("fmod", false) ? Op::kTrunc : Op::kFloor, {b.div(c.widened(c.in(0)), c.widened(c.in(1)))});
  c.set_rounded(1, b.neg(b.reduce_to(b.mul(c.widened(c.dy()), quotient), c.type(c.in(1)).shape)));
}

// The number that `value` holds in every element, if the graph says so.
static std::optional<double> constant_of(const Graph& graph, ValueId value) {
  const NodeId producer = graph.value(value).producer;
  if (!producer) return std::nullopt;
  const Node& node = graph.node(producer);
  if (node.op == Op::kExpand || node.op == Op::kReshape || node.op == Op::kUnsqueeze)
    return constant_of(graph, node.inputs[0]);
  if (node.op != Op::kConstant && node.op != Op::kConstantOfShape) return std::nullopt;
  return node.attrs.has("value") ? std::optional(node.attrs.f("value")) : std::nullopt;
}

// dx = dy*n*x^(n-1) for a number n
static void grad_power_of_number(GradContext& c, double n) {
  Builder& b = c.b();
  const ValueId x = c.in(0);
  if (n == 0.0) return;  // zeros
  if (n == 1.0) return set_reduced(c, 0, c.dy());
  ValueId power = x;
  if (n == 3.0) {
    power = b.mul(x, x);
  } else if (n != 2.0) {
    power = b.op(Op::kPow, {x, b.scalar_like(n - 1.0, x)});
  }
  set_reduced(c, 0, b.mul(c.dy(), b.mul(power, n)));
}

// dx = n == 0 ? 0 : dy*n*x^(n-1),  dn = x == 0 and n >= 0 ? 0 : dy*y*log(x)
void grad_pow(GradContext& c) {
  Builder& b = c.b();
  const ValueId x = c.in(0), n = c.in(1);
  if (const std::optional<double> number = constant_of(c.graph(), n)) return grad_power_of_number(c, *number);
  const ValueId zero = b.scalar_like(0, c.dy());
  if (c.wants(0)) {
    const ValueId slope = b.mul(n, b.op(Op::kPow, {x, b.add(n, -1.0)}));
    set_reduced(c, 0, b.op(Op::kWhere, {b.op(Op::kEqual, {n, zero}), zero, b.mul(c.dy(), slope)}));
  }
  if (c.wants(1)) {
    const ValueId flat = b.op(Op::kAnd, {b.op(Op::kEqual, {x, zero}), b.op(Op::kGreaterOrEqual, {n, zero})});
    const ValueId slope = b.mul(c.out(0), b.op(Op::kLog, {x}));
    set_reduced(c, 1, b.op(Op::kWhere, {flat, zero, b.mul(c.dy(), slope)}));
  }
}

// The greater operand (by `wins`) takes dy, equal ones half each.
static void grad_extreme_of_two(GradContext& c, Op wins) {
  Builder& b = c.b();
  const ValueId zero = b.scalar_like(0, c.dy());
  const ValueId tie = b.op(Op::kEqual, {c.in(0), c.in(1)});
  const ValueId shared = b.op(Op::kWhere, {tie, b.mul(c.dy(), 0.5), c.dy()});
  for (size_t i : {0, 1})
    if (c.wants(i)) set_reduced(c, i, b.op(Op::kWhere, {b.op(wins, {c.in(1 - i), c.in(i)}), zero, shared}));
}
void grad_max(GradContext& c) { grad_extreme_of_two(c, Op::kGreater); }
void grad_min(GradContext& c) { grad_extreme_of_two(c, Op::kLess); }

// y = atan2(p, q):  dp = dy*q/(p^2 + q^2),  dq = -dy*p/(p^2 + q^2), 0 at the origin
void grad_atan2(GradContext& c) {
  Builder& b = c.b();
  const ValueId p = c.widened(c.in(0)), q = c.widened(c.in(1)), dy = c.widened(c.dy()), zero = b.scalar_like(0, dy);
  const ValueId square = b.add(b.mul(p, p), b.mul(q, q));
  const ValueId share = b.op(Op::kWhere, {b.op(Op::kEqual, {square, zero}), zero, b.div(dy, square)});
  const auto set = [&](size_t i, ValueId grad) { c.set_rounded(i, b.reduce_to(grad, c.type(c.in(i)).shape)); };
  if (c.wants(0)) set(0, b.mul(share, q));
  if (c.wants(1)) set(1, b.neg(b.mul(share, p)));
}

void grad_where(GradContext& c) {
  Builder& b = c.b();
  const ValueId zero = b.scalar_like(0, c.dy());
  if (c.wants(1)) set_reduced(c, 1, b.op(Op::kWhere, {c.in(0), c.dy(), zero}));
  if (c.wants(2)) set_reduced(c, 2, b.op(Op::kWhere, {c.in(0), zero, c.dy()}));
}

// concat(-x[E/2:], x[:E/2])
static ValueId rotate_half(Builder& b, ValueId x) {
  const int64_t axis = b.rank(x) - 1;
  const Dim width = b.shape(x).back(), half = floordiv(width, 2);
  const ValueId low = b.slice(x, axis, 0, half), high = b.neg(b.slice(x, axis, half, width));
  return b.op(Op::kConcat, {high, low}, {{"axis", Dim(axis)}});
}

// (-x[2i+1], x[2i])
static ValueId rotate_neighbours(Builder& b, ValueId x) {
  const Shape shape = b.shape(x);
  Shape pairs = shape;
  pairs.back() = floordiv(shape.back(), 2);
  pairs.push_back(2);
  return b.reshape(rotate_half(b, b.reshape(x, pairs)), shape);
}

// y = x*cos + R x*sin:  dx is the adjoint map,  dcos = dy*x,  dsin = dy*R x
void grad_rotary(GradContext& c) {
  Builder& b = c.b();
  const bool transposed = c.attrs().b("transposed", false), interleaved = c.attrs().b("interleaved", false);
  if (c.wants(0)) {
    Attrs attrs{{"transposed", !transposed}};
    if (interleaved) attrs.set("interleaved", true);
    c.set(0, b.op(Op::kRotaryEmbedding, {c.dy(), c.in(1), c.in(2)}, std::move(attrs)));
  }
  if (c.wants(1)) set_reduced(c, 1, b.mul(c.dy(), c.in(0)));
  if (c.wants(2)) {
    // The transposed map rotates after the product with sin: there dsin = x*R dy.
    const ValueId turned = transposed ? c.dy() : c.in(0);
    const ValueId rotated = interleaved ? rotate_neighbours(b, turned) : rotate_half(b, turned);
    set_reduced(c, 2, b.mul(rotated, transposed ? c.in(0) : c.dy()));
  }
}

}  // namespace lowtide
