// Softmax over an axis that is not the last one: rows side by side in memory.
#pragma once

#include "kernels/cpu/dense.h"

namespace lowtide::cpu {

struct SoftmaxPlanes : AlongAxis {
  explicit SoftmaxPlanes(const BoundCall& call) : AlongAxis(call.inputs[0], call.attrs->i("axis")) {}
};
const char* supports_planes(const KernelQuery& query);
KernelStatus plane_softmax(const KernelCall& call, const SoftmaxPlanes& planes);
KernelStatus plane_log_softmax(const KernelCall& call, const SoftmaxPlanes& planes);
KernelStatus plane_softmax_grad(const KernelCall& call, const SoftmaxPlanes& planes);
KernelStatus plane_log_softmax_grad(const KernelCall& call, const SoftmaxPlanes& planes);

// f64
const char* supports_double_planes(const KernelQuery& query);
KernelStatus double_plane_softmax(const KernelCall& call, const SoftmaxPlanes& planes);
KernelStatus double_plane_log_softmax(const KernelCall& call, const SoftmaxPlanes& planes);
KernelStatus double_plane_softmax_grad(const KernelCall& call, const SoftmaxPlanes& planes);
KernelStatus double_plane_log_softmax_grad(const KernelCall& call, const SoftmaxPlanes& planes);

}  // namespace lowtide::cpu
