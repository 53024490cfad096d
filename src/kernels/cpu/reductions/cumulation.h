// Sums of all numbers up to each one along an axis, of row-major tensors.
#pragma once

#include "kernels/cpu/dense.h"

namespace lowtide::cpu {

struct Cumulation : AlongAxis {
  explicit Cumulation(const BoundCall& call)
      : AlongAxis(call.inputs[0], call.attrs->i("axis")), reverse(call.attrs->b("reverse", false)) {}
  bool reverse;
};
const char* supports_cum_sum(const KernelQuery& query);
KernelStatus cum_sum(const KernelCall& call, const Cumulation& cumulation);

}  // namespace lowtide::cpu
