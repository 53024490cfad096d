// Functions of x + bias in f64, by the loops of the functions' rooms.
#pragma once

#include "kernels/cpu/pointwise/doubles.h"

namespace lowtide::cpu {

// x, bias?, y
struct DoubleSum : OperandRuns<2> {
  explicit DoubleSum(const BoundCall& call) : OperandRuns(call, kDoubleRun) {}
};
// dy, x, bias?, dx
struct DoubleSumGrad : OperandRuns<3> {
  explicit DoubleSumGrad(const BoundCall& call) : OperandRuns(call, kDoubleRun) {}
};
// Rows of x, bias and y.
struct DoubleSumRows : RowWalk<3> {
  explicit DoubleSumRows(const BoundCall& call)
      : RowWalk(call, call.inputs[0], call.inputs[0].rank - 1, {&call.inputs[0], &call.inputs[1], &call.outputs[0]}) {}
};

const char* supports_double_bias_softmax(const KernelQuery& query);

KernelStatus double_fast_gelu(const KernelCall& call, const DoubleSum& runs);
KernelStatus double_fast_gelu_grad(const KernelCall& call, const DoubleSumGrad& runs);
KernelStatus double_bias_softmax(const KernelCall& call, const DoubleSumRows& rows);

}  // namespace lowtide::cpu
