// Softmax over an axis that is not the last one: rows side by side in memory.
#pragma once

#include "kernels/kernel.h"

namespace lowtide::cpu {

struct SoftmaxPlanes {
  explicit SoftmaxPlanes(const BoundCall& call);
  int64_t outer, size, inner;  // sizes before the axis, along it, behind it
};
const char* supports_planes(const KernelQuery& query);
KernelStatus plane_softmax(const KernelCall& call, const SoftmaxPlanes& planes);
KernelStatus plane_log_softmax(const KernelCall& call, const SoftmaxPlanes& planes);
KernelStatus plane_softmax_grad(const KernelCall& call, const SoftmaxPlanes& planes);
KernelStatus plane_log_softmax_grad(const KernelCall& call, const SoftmaxPlanes& planes);

}  // namespace lowtide::cpu
