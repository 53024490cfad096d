#include "kernels/cpu/bias/double_sums.h"

#include "kernels/cpu/softmax/double_rows_table.h"

namespace lowtide::cpu {

// x + bias in `sum`, or where x lies if there is no bias.
static const double* sum_of(const TensorRef& x, int64_t offset, int64_t step, const TensorRef* bias,
                            int64_t bias_offset, int64_t bias_step, int64_t n, double* sum) {
  const double* from = doubles_of(x, offset, step, n, sum);
  if (bias == nullptr) return from;
  const double* added = bias->as<double>() + bias_offset;
  for (int64_t i = 0; i < n; ++i) sum[i] = from[i] + added[i * bias_step];
  return sum;
}

const char* supports_double_bias_softmax(const KernelQuery& query) {
  if (query.attrs->i("axis") != query.inputs[0].rank - 1) return "not over the last axis";
  return supports_doubles(query);
}

KernelStatus double_fast_gelu(const KernelCall& call, const DoubleSum& runs) {
  const auto loop = double_table().unary[static_cast<int>(DoubleOp::kFastGelu)];
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    double sum[kDoubleRun];
    const double* x = sum_of(call.inputs[0], at[0], steps[0], input(call, 1), at[1], steps[1], n, sum);
    put_doubles(call.outputs[0], at[2], steps[2], n, [&](double* y) { loop(x, y, n, 0); });
  });
  return nullptr;
}

KernelStatus double_fast_gelu_grad(const KernelCall& call, const DoubleSumGrad& runs) {
  const auto loop = double_table().unary_grad[static_cast<int>(DoubleGradOp::kFastGelu)];
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    double in[kDoubleRun], sum[kDoubleRun];
    const double* dy = doubles_of(call.inputs[0], at[0], steps[0], n, in);
    const double* x = sum_of(call.inputs[1], at[1], steps[1], input(call, 2), at[2], steps[2], n, sum);
    put_doubles(call.outputs[0], at[3], steps[3], n, [&](double* dx) { loop(x, dy, dx, n); });
  });
  return nullptr;
}

KernelStatus double_bias_softmax(const KernelCall& call, const DoubleSumRows& rows) {
  const double *x = call.inputs[0].as<double>(), *bias = call.inputs[1].as<double>();
  double* y = call.outputs[0].as<double>();
  const int64_t size = rows.size, step = rows.steps[1];
  rows.for_each(8192 / std::max<int64_t>(size, 1), [&](const auto& at) {
    double* row = y + at[2];
    for (int64_t i = 0; i < size; ++i) row[i] = x[at[0] + i] + bias[at[1] + i * step];
    double_rows_table().softmax(row, row, size);
  });
  return nullptr;
}

}  // namespace lowtide::cpu
