#include "kernels/cpu/half_vectors.h"
#include "kernels/cpu/pointwise/activation.h"
#include "kernels/cpu/pointwise/pointwise_table.h"

namespace lowtide::cpu::LT_ISA {
namespace {

template <class F>
LT_INLINE vf each_lane(vf x, F f) {
  for (int i = 0; i < kLanes; ++i) x[i] = f(x[i]);
  return x;
}

LT_INLINE vf truncate(vf x) { return copy_sign(to_float(to_int(x)), x); }
LT_INLINE vi has_fraction(vf x) { return abs(x) < splat(8388608.0f); }

template <UnaryOp op>
LT_INLINE vf unary_value(vf x, vf a, vf b) {
  const vf zero = {}, one = splat(1.0f);
  using enum UnaryOp;
  if constexpr (op == kCopy) return x;
  if constexpr (op == kNeg) return -x;
  if constexpr (op == kAbs) return abs(x);
  if constexpr (op == kExp) return exp(x);
  if constexpr (op == kLog) return log(x);
  if constexpr (op == kSqrt) return vsqrt(x);
  if constexpr (op == kRsqrt) return one / vsqrt(x);
  if constexpr (op == kReciprocal) return one / x;
  if constexpr (op == kSquare) return x * x;
  if constexpr (op == kFloor) {
    const vf t = truncate(x);
    return has_fraction(x) ? (t > x ? t - one : t) : x;
  }
  if constexpr (op == kCeil) {
    const vf t = truncate(x);
    return has_fraction(x) ? (t < x ? copy_sign(t + one, x) : t) : x;
  }
  if constexpr (op == kRound)
    return abs(x) < splat(4194304.0f) ? copy_sign(round_even(x), x) : each_lane(x, __builtin_rintf);
  if constexpr (op == kTanh) return tanh(x);
  if constexpr (op == kSigmoid) return sigmoid(x);
  if constexpr (op == kErf) return erf(x);
  if constexpr (op == kSin) return sin(x);
  if constexpr (op == kCos) return cos(x);
  if constexpr (op == kLog1p) return each_lane(x, [](float v) { return __builtin_log1pf(v); });
  if constexpr (op == kExpm1) return each_lane(x, [](float v) { return __builtin_expm1f(v); });
  if constexpr (op == kRelu) return vmax(zero, x);
  if constexpr (op == kGelu) return gelu(x);
  if constexpr (op == kFastGelu) return fast_gelu(x);
  // x sigmoid(x)
  if constexpr (op == kSwish) return x * sigmoid(x);
  if constexpr (op == kQuickGelu) return swish(x, a);
  if constexpr (op == kSoftplus) return softplus(x);
  if constexpr (op == kHuber) {
    const vf bounded = vmin(a, vmax(-a, x));
    return bounded * (x - bounded * 0.5f);
  }
  if constexpr (op == kLeakyRelu) return x > zero ? x : a * x;
  if constexpr (op == kElu) return x > zero ? b * x : a * expm1_negative(x);
  // clip(x/6 + 1/2, 0, 1)
  if constexpr (op == kHardSigmoid) return hard_sigmoid(x);
  // x clip(x/6 + 1/2, 0, 1)
  if constexpr (op == kHardSwish) return x * hard_sigmoid(x);
  // x tanh(log(1 + exp(x)))
  if constexpr (op == kMish) return mish(x);
  // 0 for NaN, as in PyTorch
  if constexpr (op == kSign) return x > zero ? one : x < zero ? -one : zero;
  if constexpr (op == kClip) return vmin(b, vmax(a, x));
}

template <UnaryGradOp op>
LT_INLINE vf slope(vf x, vf a) {
  const vf one = splat(1.0f);
  using enum UnaryGradOp;
  if constexpr (op == kTanhFromY) return fma(-x, x, one);
  if constexpr (op == kSigmoidFromY) return x * (one - x);
  if constexpr (op == kGelu) return gelu_slope(x);
  if constexpr (op == kFastGelu) return fast_gelu_slope(x);
  if constexpr (op == kSwish) return swish_slope(x, one);
  if constexpr (op == kQuickGelu) return swish_slope(x, a);
  if constexpr (op == kMish) return mish_slope(x);
  return one;
}

template <UnaryGradOp op>
LT_INLINE vf grad_value(vf x, vf dy, vf a) {
  if constexpr (op == UnaryGradOp::kRelu) return x <= vf{} ? vf{} : dy;  // NaN passes
  return dy * slope<op>(x, a);
}

template <BinaryOp op>
LT_INLINE vf binary_value(vf a, vf b) {
  using enum BinaryOp;
  if constexpr (op == kAdd) return a + b;
  if constexpr (op == kSub) return a - b;
  if constexpr (op == kMul) return a * b;
  if constexpr (op == kDiv) return a / b;
  if constexpr (op == kMax) return a == a ? vmax(a, b) : a;
  if constexpr (op == kMin) return a == a ? vmin(a, b) : a;
  if constexpr (op == kPow) {
    for (int i = 0; i < kLanes; ++i) a[i] = __builtin_powf(a[i], b[i]);
    return a;
  }
}

// Operands stored as S.
template <class S, UnaryOp op>
void unary_loop(const void* x, void* y, int64_t n, float a, float b) {
  const auto* from = (const typename S::Number*)x;
  auto* to = (typename S::Number*)y;
  const vf va = splat(a), vb = splat(b);
  for_vectors(n, [&](int64_t i, auto count)
                     LT_INLINE_LAMBDA { S::store(to + i, unary_value<op>(S::load(from + i, count), va, vb), count); });
}

template <class S, UnaryGradOp op>
void grad_loop(const void* saved, const void* dy, void* dx, int64_t n, float a) {
  const auto *from = (const typename S::Number*)saved, *grad = (const typename S::Number*)dy;
  auto* to = (typename S::Number*)dx;
  const vf va = splat(a);
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    S::store(to + i, grad_value<op>(S::load(from + i, count), S::load(grad + i, count), va), count);
  });
}

template <class S, BinaryOp op, Advance advance>
void binary_loop(const void* a, const void* b, void* y, int64_t n) {
  const auto *left = (const typename S::Number*)a, *right = (const typename S::Number*)b;
  auto* to = (typename S::Number*)y;
  const vf first_a = splat(S::load(left, 1)[0]), first_b = splat(S::load(right, 1)[0]);
  if constexpr (op == BinaryOp::kPow && advance == Advance::kLeft) {
    // The exponents of norms and of written-out activations.
    using enum UnaryOp;
    const float exponent = first_b[0];
    if (exponent == 2.0f) return unary_loop<S, kSquare>(a, y, n, 0, 0);
    if (exponent == 0.5f) return unary_loop<S, kSqrt>(a, y, n, 0, 0);
    if (exponent == -0.5f) return unary_loop<S, kRsqrt>(a, y, n, 0, 0);
    if (exponent == -1.0f) return unary_loop<S, kReciprocal>(a, y, n, 0, 0);
    if (exponent == 1.0f) return unary_loop<S, kCopy>(a, y, n, 0, 0);
    if (exponent == 3.0f) {
      for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
        const vf x = S::load(left + i, count);
        S::store(to + i, x * x * x, count);
      });
      return;
    }
  }
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    const vf va = advance == Advance::kRight ? first_a : S::load(left + i, count);
    const vf vb = advance == Advance::kLeft ? first_b : S::load(right + i, count);
    S::store(to + i, binary_value<op>(va, vb), count);
  });
}

template <class S>
LT_INLINE vf sum_at(const void* x, const float* bias, int64_t i, auto count) {
  return S::rounded(S::load((const typename S::Number*)x + i, count) + load(bias + i, count));
}

template <class S>
void sum_loop(const void* x, const float* bias, float* sum, int64_t n) {
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { store(sum + i, sum_at<S>(x, bias, i, count), count); });
}

template <class S, UnaryOp op>
void of_sum_loop(const void* x, const float* bias, void* y, int64_t n) {
  auto* to = (typename S::Number*)y;
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    S::store(to + i, unary_value<op>(sum_at<S>(x, bias, i, count), vf{}, vf{}), count);
  });
}

template <class S, UnaryGradOp op>
void of_sum_grad_loop(const void* x, const float* bias, const void* dy, void* dx, int64_t n) {
  const auto* grad = (const typename S::Number*)dy;
  auto* to = (typename S::Number*)dx;
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    S::store(to + i, grad_value<op>(sum_at<S>(x, bias, i, count), S::load(grad + i, count), vf{}), count);
  });
}

template <CompareOp op>
LT_INLINE bool holds(float a, float b) {
  using enum CompareOp;
  if constexpr (op == kEqual) return a == b;
  if constexpr (op == kNotEqual) return a != b;
  if constexpr (op == kLess) return a < b;
  if constexpr (op == kLessOrEqual) return a <= b;
  if constexpr (op == kGreater) return a > b;
  if constexpr (op == kGreaterOrEqual) return a >= b;
}

template <CompareOp op, Advance advance>
void compare_loop(const float* a, const float* b, uint8_t* y, int64_t n) {
  const int64_t step_a = advance != Advance::kRight, step_b = advance != Advance::kLeft;
  for (int64_t i = 0; i < n; ++i) y[i] = holds<op>(a[i * step_a], b[i * step_b]);
}

template <int advancing>
void select_loop(const uint8_t* condition, const float* a, const float* b, float* y, int64_t n) {
  const int64_t step_a = advancing & 1, step_b = advancing >> 1;
  const float first_a = *a, first_b = *b;
  for (int64_t i = 0; i < n; ++i) {
    const float va = step_a ? a[i] : first_a, vb = step_b ? b[i] : first_b;
    y[i] = condition[i] ? va : vb;
  }
}

template <class S, int op>
constexpr void fill_unary(StoredLoops& loops) {
  if constexpr (op < kUnaryOps) {
    loops.unary[op] = unary_loop<S, static_cast<UnaryOp>(op)>;
    fill_unary<S, op + 1>(loops);
  }
}
template <class S, int op>
constexpr void fill_grad(StoredLoops& loops) {
  if constexpr (op < kUnaryGradOps) {
    loops.unary_grad[op] = grad_loop<S, static_cast<UnaryGradOp>(op)>;
    fill_grad<S, op + 1>(loops);
  }
}
template <class S, int op>
constexpr void fill_binary(StoredLoops& loops) {
  if constexpr (op < kBinaryOps) {
    constexpr BinaryOp each = static_cast<BinaryOp>(op);
    loops.binary[op][0] = binary_loop<S, each, Advance::kBoth>;
    loops.binary[op][1] = binary_loop<S, each, Advance::kLeft>;
    loops.binary[op][2] = binary_loop<S, each, Advance::kRight>;
    fill_binary<S, op + 1>(loops);
  }
}
template <class S>
constexpr StoredLoops loops_of() {
  StoredLoops loops = {};
  fill_unary<S, 0>(loops);
  fill_grad<S, 0>(loops);
  fill_binary<S, 0>(loops);
  loops.sum = sum_loop<S>;
  loops.gelu_of_sum = of_sum_loop<S, UnaryOp::kGelu>;
  loops.fast_gelu_of_sum = of_sum_loop<S, UnaryOp::kFastGelu>;
  loops.gelu_of_sum_grad = of_sum_grad_loop<S, UnaryGradOp::kGelu>;
  loops.fast_gelu_of_sum_grad = of_sum_grad_loop<S, UnaryGradOp::kFastGelu>;
  return loops;
}
template <int op>
constexpr void fill_compare(PointwiseTable& table) {
  if constexpr (op < kCompareOps) {
    constexpr CompareOp each = static_cast<CompareOp>(op);
    table.compare[op][0] = compare_loop<each, Advance::kBoth>;
    table.compare[op][1] = compare_loop<each, Advance::kLeft>;
    table.compare[op][2] = compare_loop<each, Advance::kRight>;
    fill_compare<op + 1>(table);
  }
}

constexpr PointwiseTable make_table() {
  PointwiseTable table = {};
  table.stored[kStoredF32] = loops_of<Floats>();
  table.stored[kStoredBF16] = loops_of<Halves<true>>();
  table.stored[kStoredF16] = loops_of<Halves<false>>();
  fill_compare<0>(table);
  table.select[0] = select_loop<0>;
  table.select[1] = select_loop<1>;
  table.select[2] = select_loop<2>;
  table.select[3] = select_loop<3>;
  return table;
}

}  // namespace

constinit const PointwiseTable pointwise_table = make_table();

}  // namespace lowtide::cpu::LT_ISA
