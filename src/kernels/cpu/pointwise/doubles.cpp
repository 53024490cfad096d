#include "kernels/cpu/pointwise/doubles.h"

namespace lowtide::cpu {
const char* supports_doubles(const KernelQuery& query) {
  if (query.attrs->has("computes")) return "converts";
  for (const std::span<const OperandInfo> operands : {query.inputs, query.outputs}) {
    for (const OperandInfo& operand : operands)
      if (operand.present && operand.dtype != DType::kF64) return "not f64";
  }
  return nullptr;
}

const char* supports_compared_doubles(const KernelQuery& query) {
  const bool are_doubles = query.inputs[0].dtype == DType::kF64 && query.inputs[1].dtype == DType::kF64;
  return are_doubles && !query.attrs->has("computes") ? nullptr : "not f64";
}

const char* supports_double_softplus(const KernelQuery& query) {
  return query.attrs->f("beta") == 1 ? supports_doubles(query) : "beta of its own";
}

KernelStatus run_double_unary(const KernelCall& call, const DoubleUnary& runs, DoubleOp op, double a) {
  const auto loop = double_table().unary[static_cast<int>(op)];
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    double in[kDoubleRun];
    const double* x = doubles_of(call.inputs[0], at[0], steps[0], n, in);
    put_doubles(call.outputs[0], at[1], steps[1], n, [&](double* y) { loop(x, y, n, a); });
  });
  return nullptr;
}

KernelStatus double_softplus(const KernelCall& call, const DoubleSoftplus& runs) {
  return run_double_unary(call, runs, DoubleOp::kSoftplus, runs.threshold);
}

// `first`: which input is the loops' first. Without a loop for operands that stand still, they are repeated.
KernelStatus run_double_pair(const KernelCall& call, const DoubleBinary& runs, size_t first,
                             const DoubleTable::Binary* loops) {
  const size_t second = 1 - first;
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    double in[2][kDoubleRun];
    const bool one_loop = loops[1] == nullptr;
    const bool a_still = !one_loop && steps[first] == 0, b_still = !one_loop && steps[second] == 0;
    const double* a = doubles_of(call.inputs[first], at[first], steps[first], a_still ? 1 : n, in[0]);
    const double* b = doubles_of(call.inputs[second], at[second], steps[second], b_still ? 1 : n, in[1]);
    put_doubles(call.outputs[0], at[2], steps[2], n, [&](double* y) {
      if (!a_still || !b_still) return loops[b_still ? 1 : a_still ? 2 : 0](a, b, y, n);
      loops[0](a, b, y, 1);
      std::fill(y + 1, y + n, y[0]);
    });
  });
  return nullptr;
}

}  // namespace lowtide::cpu
