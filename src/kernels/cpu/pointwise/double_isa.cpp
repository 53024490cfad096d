#include "kernels/cpu/double_vectors.h"
#include "kernels/cpu/pointwise/double_table.h"

namespace lowtide::cpu::LT_ISA {
namespace {

constexpr double kTanhScale = 0.79788456080286536;  // sqrt(2 / pi)

// y, but f(x) where x is too far out to be reduced, or no number.
LT_INLINE vd far_by_lane(vd x, vd y, auto f) {
  for (int i = 0; i < kDoubles; ++i)
    if (!(x[i] <= kMostReduced && x[i] >= -kMostReduced)) y[i] = f(x[i]);
  return y;
}

template <DoubleOp op>
LT_INLINE vd value(vd x, double a) {
  using enum DoubleOp;
  if constexpr (op == kExp) return exp_in_full(x);
  if constexpr (op == kSin)
    return far_by_lane(x, x == 0.0 ? x : sine_of_doubles(x, 0),
                       [](double v) LT_INLINE_LAMBDA { return __builtin_sin(v); });
  if constexpr (op == kCos)
    return far_by_lane(x, sine_of_doubles(x, 1), [](double v) LT_INLINE_LAMBDA { return __builtin_cos(v); });
  if constexpr (op == kTanh) return tanh_of_doubles(x);
  if constexpr (op == kSigmoid) return sigmoid_of_doubles(x);
  if constexpr (op == kRelu) return x < 0.0 ? vd{} : x;
  if constexpr (op == kSwish) return x * sigmoid_of_doubles(x);
  if constexpr (op == kSoftplus) {
    const vd above = x > 0.0 ? x : vd{}, distance = x > 0.0 ? -x : x;
    return x > a ? x : above + log1p_to_1(exp_of_doubles(distance));
  }
  if constexpr (op == kFastGelu)
    return (x * 0.5) * (tanh_of_doubles((x + ((x * 0.044715) * x) * x) * kTanhScale) + 1.0);
}

template <DoubleGradOp op>
LT_INLINE vd gradient(vd x, vd dy) {
  using enum DoubleGradOp;
  if constexpr (op == kRelu) return x <= 0.0 ? vd{} : dy;  // NaN passes
  if constexpr (op == kTanhFromY) return dy * (1.0 - x * x);
  if constexpr (op == kSigmoidFromY) return (dy * (1.0 - x)) * x;
  if constexpr (op == kSwish) {
    const vd s = sigmoid_of_doubles(x);
    return dy * (s + (x * s) * (1.0 - s));
  }
  if constexpr (op == kFastGelu) {
    const vd t = tanh_of_doubles((x + ((x * 0.044715) * x) * x) * kTanhScale);
    const vd inner = ((x * (3 * 0.044715)) * x + 1.0) * kTanhScale;
    return dy * ((t + 1.0) * 0.5 + ((x * 0.5) * (1.0 - t * t)) * inner);
  }
}

template <DoubleBinaryOp op>
LT_INLINE vd combined(vd a, vd b) {
  using enum DoubleBinaryOp;
  if constexpr (op == kAdd) return a + b;
  if constexpr (op == kSub) return a - b;
  if constexpr (op == kMul) return a * b;
  if constexpr (op == kDiv) return a / b;
}

template <DoubleOp op>
void unary(const double* x, double* y, int64_t n, double a) {
  for_doubles(n, [&](int64_t i, auto count)
                     LT_INLINE_LAMBDA { store_doubles(y + i, value<op>(load_doubles(x + i, count), a), count); });
}
template <DoubleGradOp op>
void unary_grad(const double* saved, const double* dy, double* dx, int64_t n) {
  for_doubles(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    store_doubles(dx + i, gradient<op>(load_doubles(saved + i, count), load_doubles(dy + i, count)), count);
  });
}
template <DoubleBinaryOp op, int advance>
void binary(const double* a, const double* b, double* y, int64_t n) {
  const vd first_a = splat_double(a[0]), first_b = splat_double(b[0]);
  for_doubles(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    const vd left = advance == 2 ? first_a : load_doubles(a + i, count);
    const vd right = advance == 1 ? first_b : load_doubles(b + i, count);
    store_doubles(y + i, combined<op>(left, right), count);
  });
}

}  // namespace

#define LT_EACH(op) unary<DoubleOp::op>
#define LT_GRAD(op) unary_grad<DoubleGradOp::op>
#define LT_PAIR(op) {binary<DoubleBinaryOp::op, 0>, binary<DoubleBinaryOp::op, 1>, binary<DoubleBinaryOp::op, 2>}
constinit const DoubleTable double_table = {
    {LT_EACH(kExp), LT_EACH(kSin), LT_EACH(kCos), LT_EACH(kTanh), LT_EACH(kSigmoid), LT_EACH(kRelu), LT_EACH(kSwish),
     LT_EACH(kSoftplus), LT_EACH(kFastGelu)},
    {LT_GRAD(kRelu), LT_GRAD(kTanhFromY), LT_GRAD(kSigmoidFromY), LT_GRAD(kSwish), LT_GRAD(kFastGelu)},
    {LT_PAIR(kAdd), LT_PAIR(kSub), LT_PAIR(kMul), LT_PAIR(kDiv)},
};

}  // namespace lowtide::cpu::LT_ISA
