// Gradients of convolutions in which each channel has a window of its own: the list of the room has it.
#pragma once

#include "kernels/cpu/convolution/depthwise_table.h"
#include "kernels/kernel.h"

namespace lowtide::cpu {

// Inputs: dy, x, w[C, 1, kh, kw]. Outputs: dx, dw, db.
struct DepthwiseGrad : ConvolutionSizes {
  explicit DepthwiseGrad(const BoundCall& call);

  int64_t window() const { return window_height * window_width; }
  int64_t window_bytes() const { return window() * channels * 4; }
  // dw is summed up by parts of the images, which are added in order: as many, however many threads there are.
  int64_t parts() const { return images < kMostParts ? images : kMostParts; }

  static constexpr int64_t kMostParts = 8;
  DType dtype;
};

const char* supports_depthwise_grad(const KernelQuery& query);
int64_t depthwise_grad_scratch(const BoundCall& call);
KernelStatus depthwise_grad(const KernelCall& call, const DepthwiseGrad& grad);

}  // namespace lowtide::cpu
