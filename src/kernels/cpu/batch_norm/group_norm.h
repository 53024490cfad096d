// Group normalisation of images [N, C, inner], row-major or channels-last, whose groups are runs of channels side by
// side:
//   xhat = (x - mean) inv_std;  y = xhat weight + bias, mean and inv_std of each image's group
//   dweight = sum(dy xhat);  dbias = sum(dy);  dx = inv_std (dy weight - mean(dy weight) - xhat mean(dy weight xhat))
// A channel's mean and squared deviations are combined by Chan's formula in doubles, in order.
#pragma once

#include "kernels/kernel.h"

namespace lowtide::cpu {

struct Groups {
  Groups(const BoundCall& call, const TensorRef& x);
  explicit Groups(const BoundCall& call) : Groups(call, call.inputs[0]) {}
  int64_t blocks() const;                             // of rows, where channels lie last
  int64_t images, channels, inner, groups, of_group;  // channels of one
  bool channels_last;
  double epsilon;
};
struct GroupsGrad : Groups {
  explicit GroupsGrad(const BoundCall& call) : Groups(call, call.inputs[1]) {}
};

int64_t group_norm_scratch(const BoundCall& call);
int64_t group_norm_grad_scratch(const BoundCall& call);
KernelStatus group_norm(const KernelCall& call, const Groups& groups);
KernelStatus group_norm_grad(const KernelCall& call, const GroupsGrad& groups);

}  // namespace lowtide::cpu
