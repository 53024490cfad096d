// Functions of x + bias. The sum is rounded to the dtype of x, as Add rounds it.
#include "kernels/philox.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

namespace {

// Adds bias (nothing if absent) to x.
void load_sum(const TensorRef& x, const TensorRef* bias, int64_t x_at, int64_t x_step, int64_t bias_at,
              int64_t bias_step, int64_t n, double* sum) {
  load(x, x_at, x_step, n, sum);
  if (bias == nullptr) return;
  double added[kRun];
  load(*bias, bias_at, bias_step, n, added);
  for (int64_t i = 0; i < n; ++i) sum[i] += added[i];
  round_to(x.dtype, sum, n);
}

constexpr double kTanhScale = M_2_SQRTPI * M_SQRT1_2;

double gelu_of(double x) { return 0.5 * x * (1 + std::erf(x * M_SQRT1_2)); }
double fast_gelu_of(double x) { return 0.5 * x * (1 + std::tanh(kTanhScale * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
  const double density = std::exp(-0.5 * x * x) * (0.5 * M_2_SQRTPI * M_SQRT1_2);
  return 0.5 * (1 + std::erf(x * M_SQRT1_2)) + x * density;
}
double fast_gelu_slope(double x) {
  const double t = std::tanh(kTanhScale * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kTanhScale * (1 + 3 * 0.044715 * x * x);
}

// Inputs: x, bias?
template <class F>
KernelStatus map_sum(const KernelCall& call, const Binary& runs, F f) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const TensorRef* bias = input(call, 1);
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    double values[kRun];
    load_sum(x, bias, at[0], steps[0], at[1], steps[1], n, values);
    for (int64_t i = 0; i < n; ++i) values[i] = f(values[i]);
    store(y, at[2], steps[2], n, values);
  });
  return nullptr;
}

// Inputs: dy, x, bias?
template <class F>
KernelStatus map_sum_grad(const KernelCall& call, const Ternary& runs, F slope) {
  const TensorRef &dy = call.inputs[0], &x = call.inputs[1], &dx = call.outputs[0];
  const TensorRef* bias = input(call, 2);
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    double values[kRun], grads[kRun];
    load_sum(x, bias, at[1], steps[1], at[2], steps[2], n, values);
    load(dy, at[0], steps[0], n, grads);
    for (int64_t i = 0; i < n; ++i) values[i] = grads[i] * slope(values[i]);
    store(dx, at[3], steps[3], n, values);
  });
  return nullptr;
}

}  // namespace

KernelStatus bias_gelu(const KernelCall& call, const Binary& runs) { return map_sum(call, runs, gelu_of); }
KernelStatus fast_gelu(const KernelCall& call, const Binary& runs) { return map_sum(call, runs, fast_gelu_of); }
KernelStatus bias_gelu_grad(const KernelCall& call, const Ternary& runs) {
  return map_sum_grad(call, runs, gelu_slope);
}
KernelStatus fast_gelu_grad(const KernelCall& call, const Ternary& runs) {
  return map_sum_grad(call, runs, fast_gelu_slope);
}

// Inputs: x, bias, residual?
KernelStatus bias_dropout(const KernelCall& call, const DroppedSum& runs) {
  const TensorRef &x = call.inputs[0], &bias = call.inputs[1], &y = call.outputs[0];
  const TensorRef* residual = input(call, 2);
  const Dropped& dropped = runs.dropped;
  runs.for_each([&](int64_t first, const auto& at, const auto& steps, int64_t n) {
    double values[kRun], added[kRun];
    load_sum(x, &bias, at[0], steps[0], at[1], steps[1], n, values);
    for (int64_t i = 0; i < n; ++i) {
      const bool keep =
          dropout_keep(call.random_key, dropped.stream, static_cast<uint64_t>(first + i), dropped.threshold);
      values[i] = keep ? values[i] * dropped.scale : 0.0;
    }
    if (residual) {
      round_to(y.dtype, values, n);
      load(*residual, at[2], steps[2], n, added);
      for (int64_t i = 0; i < n; ++i) values[i] += added[i];
    }
    store(y, at[3], steps[3], n, values);
  });
  return nullptr;
}

KernelStatus bias_softmax(const KernelCall& call, const BinaryRows& rows) {
  const TensorRef &x = call.inputs[0], &bias = call.inputs[1], &y = call.outputs[0];
  const int64_t size = rows.size;
  rows.for_each(1024 / std::max<int64_t>(size, 1), [&](const auto& at) {
    const auto sum_at = [&](int64_t i) {
      return rounded(x.dtype, get(x, at[0] + i * rows.steps[0]) + get(bias, at[1] + i * rows.steps[1]));
    };
    double largest = -kInfinity, total = 0;
    for (int64_t i = 0; i < size; ++i) largest = std::max(largest, sum_at(i));
    for (int64_t i = 0; i < size; ++i) total += std::exp(sum_at(i) - largest);
    for (int64_t i = 0; i < size; ++i) set(y, at[2] + i * rows.steps[2], std::exp(sum_at(i) - largest) / total);
  });
  return nullptr;
}

}  // namespace lowtide::reference
