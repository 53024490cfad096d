#include "kernels/reference/map.h"
#include "kernels/reference/reference.h"

namespace lowtide::reference {

template <class F>
static KernelStatus map_ints(const KernelCall& call, const Unary& runs, F f) {
  return map<int64_t, int64_t, 1>(call, runs, f);
}

// For ops that mean the same on floats and integers.
template <class F>
static KernelStatus map_numbers(const KernelCall& call, const Unary& runs, F f) {
  return is_float(call.inputs[0].dtype) ? map_floats(call, runs, f) : map_ints(call, runs, f);
}

static double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }
static double log1p_exp(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }
static double relu6(double x) { return x < 0 ? 0.0 : x > 6 ? 6.0 : x; }

// std::lgamma writes a global, the sign.
static double log_gamma(double x) {
  int sign;
  return lgamma_r(x, &sign);
}

// By reflection, recurrence up to where the asymptotic series is exact, and that series; as PyTorch, not a number at
// negative integers, and infinite at 0.
static double digamma_of(double x) {
  if (x == 0) return std::copysign(kInfinity, -x);
  double result = 0;
  if (x < 0) {
    if (x == std::trunc(x)) return std::numeric_limits<double>::quiet_NaN();
    double whole;
    result = -M_PI / std::tan(M_PI * std::modf(x, &whole));
    x = 1 - x;
  }
  for (; x < 10; ++x) result -= 1 / x;
  if (x == kInfinity) return x;
  const double z = 1 / (x * x);
  const double series =
      z * (1. / 12 - z * (1. / 120 - z * (1. / 252 - z * (1. / 240 - z * (1. / 132 - z * (691. / 32760 - z / 12))))));
  return result + std::log(x) - 0.5 / x - series;
}

static double trigamma_of(double x) {
  double result = 0, sign = 1;
  if (x < 0.5) {
    const double sine = std::sin(M_PI * x);
    result = -M_PI * M_PI / (sine * sine);
    sign = -1;
    x = 1 - x;
  }
  for (; x < 10; ++x) result += 1 / (x * x);
  const double z = 1 / (x * x);
  const double series = z * (1. / 6 - z * (1. / 30 - z * (1. / 42 - z * (1. / 30 - z * (5. / 66 - z * 691. / 2730)))));
  return sign * (result + (1 + 0.5 / x + series) / x);
}

// The functions of one number that list.inc writes out.
#define LT_REFERENCE_LINE(...)
#define LT_REFERENCE_FORMULA(op, function, y)                        \
  KernelStatus function(const KernelCall& call, const Unary& runs) { \
    return map_floats(call, runs, [](double x) { return y; });       \
  }
#include "kernels/reference/list.inc"

KernelStatus copy(const KernelCall& call, const Unary& runs) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    copy_elements(address(y, at[1]), steps[1], address(x, at[0]), steps[0], n, size_bytes(x.dtype));
  });
  return nullptr;
}

KernelStatus cast(const KernelCall& call, const Unary& runs) {
  // Integers go to floating point in one rounding; store() does it.
  if (!is_float(call.inputs[0].dtype)) return map_ints(call, runs, [](int64_t x) { return x; });
  return map_floats(call, runs, [](double x) { return x; });
}

KernelStatus abs(const KernelCall& call, const Unary& runs) {
  if (!is_float(call.inputs[0].dtype))
    return map_ints(call, runs, [](int64_t x) { return x < 0 ? -static_cast<uint64_t>(x) : x; });
  return map_floats(call, runs, [](double x) { return std::fabs(x); });
}
KernelStatus neg(const KernelCall& call, const Unary& runs) {
  if (!is_float(call.inputs[0].dtype)) return map_ints(call, runs, [](int64_t x) { return -static_cast<uint64_t>(x); });
  return map_floats(call, runs, [](double x) { return -x; });
}

// NaN stays NaN.
KernelStatus relu(const KernelCall& call, const Unary& runs) {
  return map_numbers(call, runs, [](auto x) { return x < 0 ? decltype(x){0} : x; });
}
KernelStatus leaky_relu(const KernelCall& call, const WithAlpha<Unary>& runs) {
  const double alpha = runs.alpha;
  return map_floats(call, runs, [=](double x) { return x > 0 ? x : alpha * x; });
}
KernelStatus huber(const KernelCall& call, const WithAlpha<Unary>& runs) {
  const double alpha = runs.alpha;
  return map_floats(call, runs,
                    [=](double x) { return std::abs(x) > alpha ? alpha * (std::abs(x) - alpha / 2) : x * x / 2; });
}
KernelStatus elu(const KernelCall& call, const EluScales& runs) {
  const double alpha = runs.alpha, scale = runs.scale, inner = runs.inner;
  return map_floats(call, runs, [=](double x) { return x > 0 ? scale * x : scale * alpha * std::expm1(x * inner); });
}
KernelStatus softplus(const KernelCall& call, const SoftplusBend& runs) {
  const double beta = runs.beta, threshold = runs.threshold;
  return map_floats(call, runs, [=](double x) { return beta * x > threshold ? x : log1p_exp(beta * x) / beta; });
}
KernelStatus gelu(const KernelCall& call, const Unary& runs) {
  return map_floats(call, runs, [](double x) { return 0.5 * x * (1 + std::erf(x * M_SQRT1_2)); });
}
KernelStatus quick_gelu(const KernelCall& call, const WithAlpha<Unary>& runs) {
  const double alpha = runs.alpha;
  return map_floats(call, runs, [=](double x) { return x * sigmoid_of(alpha * x); });
}
Bounds::Bounds(const BoundCall& call)
    : Unary(call), low(call.attrs->f("min", -kInfinity)), high(call.attrs->f("max", kInfinity)) {}

KernelStatus clip(const KernelCall& call, const Bounds& runs) {
  const double low = runs.low, high = runs.high;
  // As in PyTorch the upper bound wins where they cross, and NaN passes.
  if (is_float(call.inputs[0].dtype)) {
    return map_floats(call, runs, [=](double x) {
      const double raised = x < low ? low : x;
      return raised > high ? high : raised;
    });
  }
  return map_ints(call, runs, [=](int64_t x) {
    const int64_t raised = static_cast<double>(x) < low ? static_cast<int64_t>(low) : x;
    return static_cast<double>(raised) > high ? static_cast<int64_t>(high) : raised;
  });
}

// Integers are whole already.
template <class F>
static KernelStatus round_with(const KernelCall& call, const Unary& runs, F f) {
  return is_float(call.inputs[0].dtype) ? map_floats(call, runs, f) : map_ints(call, runs, [](int64_t x) { return x; });
}
KernelStatus floor(const KernelCall& call, const Unary& runs) {
  return round_with(call, runs, [](double x) { return std::floor(x); });
}
KernelStatus ceil(const KernelCall& call, const Unary& runs) {
  return round_with(call, runs, [](double x) { return std::ceil(x); });
}
KernelStatus round(const KernelCall& call, const Unary& runs) {
  return round_with(call, runs, [](double x) { return std::nearbyint(x); });
}
KernelStatus trunc(const KernelCall& call, const Unary& runs) {
  return round_with(call, runs, [](double x) { return std::trunc(x); });
}
// 0 for NaN, as in PyTorch.
KernelStatus sign(const KernelCall& call, const Unary& runs) {
  return map_numbers(call, runs, [](auto x) { return static_cast<decltype(x)>((x > 0) - (x < 0)); });
}
KernelStatus logical_not(const KernelCall& call, const Unary& runs) {
  return map_ints(call, runs, [](int64_t x) { return x == 0; });
}
KernelStatus bitwise_not(const KernelCall& call, const Unary& runs) {
  const bool boolean = call.inputs[0].dtype == DType::kBool;
  return map_ints(call, runs, [=](int64_t x) { return boolean ? x == 0 : ~x; });
}
KernelStatus is_nan(const KernelCall& call, const Unary& runs) {
  return map<int64_t, double, 1>(call, runs, [](double x) { return x != x; });
}
KernelStatus is_inf(const KernelCall& call, const Unary& runs) {
  return map<int64_t, double, 1>(call, runs, [](double x) { return std::fabs(x) == kInfinity; });
}

}  // namespace lowtide::reference
