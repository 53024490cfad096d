// Resize of images to the nearest or by bilinear mixes, and its gradient: sums of f32, rounded once.
#pragma once

#include "kernels/cpu/windows/images.h"

namespace lowtide::cpu {

// The two positions that an output mixes along a dim, and the share of the second.
struct Mix {
  int64_t first, second;
  float of_second;
};

struct Resized {
  Resized(const BoundCall& call, const TensorRef& small, const TensorRef& large);
  explicit Resized(const BoundCall& call) : Resized(call, call.inputs[0], call.outputs[0]) {}
  Mix mix(int dim, int64_t at) const;  // of the large image's position `at`; dim 0 is the height

  bool nearest, align_corners;
  int64_t small[2], large[2];
};
// What a row of the large image mixes, column by column, at the beginning of the scratch.
int64_t column_bytes(const Resized& resized);
const Mix* columns(const KernelCall& call, const Resized& resized);
int64_t resize_scratch(const BoundCall& call);
KernelStatus resize(const KernelCall& call, const Resized& resized);

struct ResizedGrad : Resized {
  explicit ResizedGrad(const BoundCall& call) : Resized(call, call.outputs[0], call.inputs[0]) {}
};
int64_t resize_grad_scratch(const BoundCall& call);
KernelStatus resize_grad(const KernelCall& call, const ResizedGrad& resized);

}  // namespace lowtide::cpu
