// Pooling over one or three spatial dims of row-major tensors, plane by plane and output row by output row.
#pragma once

#include "kernels/cpu/windows/window.h"

namespace lowtide::cpu {

// Planes [N C] of [depth, height, width].
struct Volume {
  explicit Volume(const TensorRef& tensor);
  int64_t rows() const { return sizes[0] * sizes[1]; }
  int64_t numel() const { return rows() * sizes[2]; }
  int64_t planes, sizes[3] = {1, 1, 1};
};

struct PooledVolumes {
  PooledVolumes(const TensorRef& image, const TensorRef& pooled) : large(image), small(pooled) {}
  Volume large, small;
};
struct MaxVolumes : PooledVolumes, Window<3> {
  explicit MaxVolumes(const BoundCall& call) : PooledVolumes(call.inputs[0], call.outputs[0]), Window(call) {}
};
struct MaxGradVolumes : PooledVolumes {
  explicit MaxGradVolumes(const BoundCall& call) : PooledVolumes(call.outputs[0], call.inputs[0]) {}
};
struct AverageVolumes : PooledVolumes, AverageWindow<3> {
  explicit AverageVolumes(const BoundCall& call)
      : PooledVolumes(call.inputs[0], call.outputs[0]), AverageWindow(call) {}
};
struct AverageGradVolumes : PooledVolumes, AverageWindow<3> {
  explicit AverageGradVolumes(const BoundCall& call)
      : PooledVolumes(call.outputs[0], call.inputs[0]), AverageWindow(call) {}
};

const char* supports_volumes(const KernelQuery& query);
const char* supports_max_volumes(const KernelQuery& query);
// Planes of halves are summed in scratch.
int64_t summed_volumes_scratch(const BoundCall& call);

KernelStatus max_pool_volumes(const KernelCall& call, const MaxVolumes& pool);
KernelStatus max_pool_grad_volumes(const KernelCall& call, const MaxGradVolumes& pool);
KernelStatus average_pool_volumes(const KernelCall& call, const AverageVolumes& pool);
KernelStatus average_pool_grad_volumes(const KernelCall& call, const AverageGradVolumes& pool);

}  // namespace lowtide::cpu
