#include "kernels/reference/map.h"
#include "kernels/reference/reference.h"

namespace lowtide::reference {

template <class F>
static KernelStatus map_two_ints(const KernelCall& call, const Binary& runs, F f) {
  return map<int64_t, int64_t, 2>(call, runs, f);
}

template <class F>
static KernelStatus map_two_numbers(const KernelCall& call, const Binary& runs, F f) {
  return is_float(call.inputs[0].dtype) ? map_two_floats(call, runs, f) : map_two_ints(call, runs, f);
}

template <class F>
static KernelStatus compare(const KernelCall& call, const Binary& runs, F f) {
  return is_float(call.inputs[0].dtype) ? map<int64_t, double, 2>(call, runs, f)
                                        : map<int64_t, int64_t, 2>(call, runs, f);
}

// Integers wrap around, also where signed overflow would be undefined.
static int64_t wrap(uint64_t value) { return static_cast<int64_t>(value); }
static uint64_t bits(int64_t value) { return static_cast<uint64_t>(value); }

KernelStatus add(const KernelCall& call, const Binary& runs) {
  if (is_float(call.inputs[0].dtype)) return map_two_floats(call, runs, [](double a, double b) { return a + b; });
  return map_two_ints(call, runs, [](int64_t a, int64_t b) { return wrap(bits(a) + bits(b)); });
}
KernelStatus sub(const KernelCall& call, const Binary& runs) {
  if (is_float(call.inputs[0].dtype)) return map_two_floats(call, runs, [](double a, double b) { return a - b; });
  return map_two_ints(call, runs, [](int64_t a, int64_t b) { return wrap(bits(a) - bits(b)); });
}
KernelStatus mul(const KernelCall& call, const Binary& runs) {
  if (is_float(call.inputs[0].dtype)) return map_two_floats(call, runs, [](double a, double b) { return a * b; });
  return map_two_ints(call, runs, [](int64_t a, int64_t b) { return wrap(bits(a) * bits(b)); });
}

static bool has_zero(const Division& runs, const TensorRef& divisor) {
  bool found = false;
  runs.divisor.for_each([&](int64_t, const auto& offsets) { found |= get_int(divisor, offsets[0]) == 0; });
  return found;
}

KernelStatus div(const KernelCall& call, const Division& runs) {
  if (is_float(call.inputs[0].dtype)) return map_two_floats(call, runs, [](double a, double b) { return a / b; });
  if (has_zero(runs, call.inputs[1])) return "Div: integer division by zero";
  return map_two_ints(call, runs, [](int64_t a, int64_t b) { return b == -1 ? wrap(-bits(a)) : a / b; });
}

// The float rule is Python's: the quotient of what the remainder leaves, rounded to the nearest whole number.
static double floor_divide(double a, double b) {
  if (b == 0) return a / b;
  const double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0 && (b < 0) != (remainder < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

KernelStatus floor_div(const KernelCall& call, const Division& runs) {
  if (is_float(call.inputs[0].dtype)) return map_two_floats(call, runs, floor_divide);
  if (has_zero(runs, call.inputs[1])) return "FloorDiv: integer division by zero";
  return map_two_ints(call, runs, [](int64_t a, int64_t b) {
    if (b == -1) return wrap(-bits(a));
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
  });
}

KernelStatus mod(const KernelCall& call, const Remainder& runs) {
  const bool dividend_sign = runs.dividend_sign;
  if (is_float(call.inputs[0].dtype)) {
    return map_two_floats(call, runs, [=](double a, double b) {
      const double remainder = std::fmod(a, b);
      return !dividend_sign && remainder != 0 && (b < 0) != (remainder < 0) ? remainder + b : remainder;
    });
  }
  if (has_zero(runs, call.inputs[1])) return "Mod: integer division by zero";
  return map_two_ints(call, runs, [=](int64_t a, int64_t b) {
    if (b == -1) return int64_t{0};
    const int64_t remainder = a % b;
    return !dividend_sign && remainder != 0 && (b < 0) != (remainder < 0) ? remainder + b : remainder;
  });
}

static int64_t power(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  uint64_t result = 1, factor = bits(base);
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2) result *= factor;
    factor *= factor;
  }
  return wrap(result);
}

KernelStatus pow(const KernelCall& call, const Binary& runs) {
  if (is_float(call.inputs[0].dtype))
    return map_two_floats(call, runs, [](double a, double b) { return std::pow(a, b); });
  return map_two_ints(call, runs, power);
}
KernelStatus max(const KernelCall& call, const Binary& runs) {
  return map_two_numbers(call, runs, [](auto a, auto b) { return is_nan_value(a) || a > b ? a : b; });
}
KernelStatus min(const KernelCall& call, const Binary& runs) {
  return map_two_numbers(call, runs, [](auto a, auto b) { return is_nan_value(a) || a < b ? a : b; });
}
KernelStatus atan2(const KernelCall& call, const Binary& runs) {
  return map_two_floats(call, runs, [](double a, double b) { return std::atan2(a, b); });
}

KernelStatus logical_and(const KernelCall& call, const Binary& runs) {
  return map_two_ints(call, runs, [](int64_t a, int64_t b) { return a != 0 && b != 0; });
}
KernelStatus logical_or(const KernelCall& call, const Binary& runs) {
  return map_two_ints(call, runs, [](int64_t a, int64_t b) { return a != 0 || b != 0; });
}
KernelStatus logical_xor(const KernelCall& call, const Binary& runs) {
  return map_two_ints(call, runs, [](int64_t a, int64_t b) { return (a != 0) != (b != 0); });
}
KernelStatus bitwise_and(const KernelCall& call, const Binary& runs) {
  return map_two_ints(call, runs, [](int64_t a, int64_t b) { return a & b; });
}
KernelStatus bitwise_or(const KernelCall& call, const Binary& runs) {
  return map_two_ints(call, runs, [](int64_t a, int64_t b) { return a | b; });
}
KernelStatus bitwise_xor(const KernelCall& call, const Binary& runs) {
  return map_two_ints(call, runs, [](int64_t a, int64_t b) { return a ^ b; });
}

KernelStatus equal(const KernelCall& call, const Binary& runs) {
  return compare(call, runs, [](auto a, auto b) { return a == b; });
}
KernelStatus not_equal(const KernelCall& call, const Binary& runs) {
  return compare(call, runs, [](auto a, auto b) { return a != b; });
}
KernelStatus less(const KernelCall& call, const Binary& runs) {
  return compare(call, runs, [](auto a, auto b) { return a < b; });
}
KernelStatus less_or_equal(const KernelCall& call, const Binary& runs) {
  return compare(call, runs, [](auto a, auto b) { return a <= b; });
}
KernelStatus greater(const KernelCall& call, const Binary& runs) {
  return compare(call, runs, [](auto a, auto b) { return a > b; });
}
KernelStatus greater_or_equal(const KernelCall& call, const Binary& runs) {
  return compare(call, runs, [](auto a, auto b) { return a >= b; });
}

KernelStatus where(const KernelCall& call, const Ternary& runs) {
  const TensorRef &condition = call.inputs[0], &a = call.inputs[1], &b = call.inputs[2], &y = call.outputs[0];
  const int64_t size = size_bytes(y.dtype);
  runs.for_each([&](int64_t, const auto& offsets, const auto& steps, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const bool first = get_int(condition, offsets[0] + i * steps[0]) != 0;
      const char* chosen = first ? address(a, offsets[1] + i * steps[1]) : address(b, offsets[2] + i * steps[2]);
      copy_elements(address(y, offsets[3] + i * steps[3]), 1, chosen, 1, 1, size);
    }
  });
  return nullptr;
}

KernelStatus overwrite(const KernelCall& call, const Binary& runs) {
  const TensorRef &value = call.inputs[0], &y = call.outputs[0];
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    copy_elements(address(y, at[2]), steps[2], address(value, at[0]), steps[0], n, size_bytes(y.dtype));
  });
  return nullptr;
}

KernelStatus gelu_grad(const KernelCall& call, const Binary& runs) {
  return map_two_floats(call, runs, [](double dy, double x) {
    const double density = std::exp(-0.5 * x * x) * (0.5 * M_2_SQRTPI * M_SQRT1_2);
    return dy * (0.5 * (1 + std::erf(x * M_SQRT1_2)) + x * density);
  });
}

// d/dx of x*sigmoid(alpha*x)
static double swish_slope(double x, double alpha) {
  const double s = 1 / (1 + std::exp(-alpha * x));
  return s + alpha * x * s * (1 - s);
}
KernelStatus swish_grad(const KernelCall& call, const Binary& runs) {
  return map_two_floats(call, runs, [](double dy, double x) { return dy * swish_slope(x, 1); });
}
KernelStatus mish_grad(const KernelCall& call, const Binary& runs) {
  return map_two_floats(call, runs, [](double dy, double x) {
    const double t = std::tanh(x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)));
    return dy * (t + x * (1 - t * t) / (1 + std::exp(-x)));
  });
}
KernelStatus quick_gelu_grad(const KernelCall& call, const WithAlpha<Binary>& runs) {
  const double alpha = runs.alpha;
  return map_two_floats(call, runs, [=](double dy, double x) { return dy * swish_slope(x, alpha); });
}
KernelStatus relu_grad(const KernelCall& call, const Binary& runs) {
  return map_two_floats(call, runs, [](double dy, double y) { return y <= 0 ? 0.0 : dy; });
}
KernelStatus tanh_grad(const KernelCall& call, const Binary& runs) {
  return map_two_floats(call, runs, [](double dy, double y) { return dy * (1 - y * y); });
}
KernelStatus sigmoid_grad(const KernelCall& call, const Binary& runs) {
  return map_two_floats(call, runs, [](double dy, double y) { return dy * (1 - y) * y; });
}

}  // namespace lowtide::reference
