// Sums of all numbers up to each one along an axis, of row-major tensors.
#pragma once

#include "kernels/kernel.h"

namespace lowtide::cpu {

struct Cumulation {
  explicit Cumulation(const BoundCall& call);
  int64_t outer, size, inner;  // sizes before the axis, along it, behind it
  bool reverse;
};
const char* supports_cum_sum(const KernelQuery& query);
KernelStatus cum_sum(const KernelCall& call, const Cumulation& cumulation);

}  // namespace lowtide::cpu
