// Pointwise ops on f64 by the loops of double_table.h.
#pragma once

#include <functional>

#include "kernels/cpu/pointwise/double_table.h"
#include "kernels/strided.h"

namespace lowtide::cpu {

constexpr int64_t kDoubleRun = 1024;

// n doubles, side by side: where they lie, or gathered.
inline const double* doubles_of(const TensorRef& tensor, int64_t offset, int64_t step, int64_t n, double* buffer) {
  const double* data = tensor.as<double>() + offset;
  if (step == 1 || n == 1) return data;
  for (int64_t i = 0; i < n; ++i) buffer[i] = data[i * step];
  return buffer;
}

// make(to) leaves n doubles there, which come to lie in y.
template <class Make>
void put_doubles(const TensorRef& y, int64_t offset, int64_t step, int64_t n, Make make) {
  double* data = y.as<double>() + offset;
  if (step == 1 || n == 1) return make(data);
  double buffer[kDoubleRun];
  make(buffer);
  for (int64_t i = 0; i < n; ++i) data[i * step] = buffer[i];
}

struct DoubleUnary : OperandRuns<1> {
  explicit DoubleUnary(const BoundCall& call) : OperandRuns(call, kDoubleRun) {}
};
struct DoubleBinary : OperandRuns<2> {
  explicit DoubleBinary(const BoundCall& call) : OperandRuns(call, kDoubleRun) {}
};
struct DoubleSoftplus : DoubleUnary {
  explicit DoubleSoftplus(const BoundCall& call) : DoubleUnary(call), threshold(call.attrs->f("threshold")) {}
  double threshold;
};

const char* supports_doubles(const KernelQuery& query);
const char* supports_compared_doubles(const KernelQuery& query);
const char* supports_double_softplus(const KernelQuery& query);

KernelStatus run_double_unary(const KernelCall& call, const DoubleUnary& runs, DoubleOp op, double a);
KernelStatus run_double_pair(const KernelCall& call, const DoubleBinary& runs, size_t first,
                             const DoubleTable::Binary* loops);

template <DoubleOp op>
KernelStatus double_unary(const KernelCall& call, const DoubleUnary& runs) {
  return run_double_unary(call, runs, op, 0);
}
// Compare(a, b) as bools.
template <class Compare>
KernelStatus double_compare(const KernelCall& call, const DoubleBinary& runs) {
  const TensorRef &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  constexpr Compare compare;
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    double in[2][kDoubleRun];
    const double* right = doubles_of(b, at[1], steps[1], steps[1] == 0 ? 1 : n, in[1]);
    const double* left = doubles_of(a, at[0], steps[0], n, in[0]);
    bool* to = y.as<bool>() + at[2];
    if (steps[2] != 1 && n > 1) {
      for (int64_t i = 0; i < n; ++i) to[i * steps[2]] = compare(left[i], steps[1] == 0 ? *right : right[i]);
    } else if (steps[1] == 0) {
      const double value = *right;
      for (int64_t i = 0; i < n; ++i) to[i] = compare(left[i], value);
    } else {
      for (int64_t i = 0; i < n; ++i) to[i] = compare(left[i], right[i]);
    }
  });
  return nullptr;
}

KernelStatus double_softplus(const KernelCall& call, const DoubleSoftplus& runs);
// Inputs: dy, saved.
template <DoubleGradOp op>
KernelStatus double_unary_grad(const KernelCall& call, const DoubleBinary& runs) {
  const auto loop = double_table().unary_grad[static_cast<int>(op)];
  const DoubleTable::Binary loops[] = {loop, nullptr, nullptr};
  return run_double_pair(call, runs, 1, loops);
}
template <DoubleBinaryOp op>
KernelStatus double_binary(const KernelCall& call, const DoubleBinary& runs) {
  return run_double_pair(call, runs, 0, double_table().binary[static_cast<int>(op)]);
}

}  // namespace lowtide::cpu
