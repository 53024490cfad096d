// Convolutions over three spatial dims at strides one: some slices at a time are turned channels-last, into scratch,
// and multiplied as the images of window_convolution.h are.
#pragma once

#include "kernels/kernel.h"

namespace lowtide::cpu {

struct VolumeConvolution {
  VolumeConvolution() = default;
  VolumeConvolution(const BoundCall& call, const TensorRef& x, const TensorRef& w, const TensorRef& y);

  struct Volume {
    int64_t channels, depth, height, width;
    int64_t slice() const { return height * width; }
  };
  int64_t volumes;
  Volume x, y;
  int64_t window[3], pads[3], dilations[3];
};
struct VolumeForward : VolumeConvolution {
  VolumeForward() = default;
  explicit VolumeForward(const BoundCall& call)
      : VolumeConvolution(call, call.inputs[0], call.inputs[1], call.outputs[0]) {}
};
// Inputs: dy, x, w. Outputs: dx, dw, db.
struct VolumeBackward : VolumeConvolution {
  VolumeBackward() = default;
  explicit VolumeBackward(const BoundCall& call)
      : VolumeConvolution(call, call.inputs[1], call.inputs[2], call.inputs[0]) {}
};

// Whether it is a single volume with a row-major window that PyTorch's library, where it has one, does not get to see,
// and that is one for these products: its own loops take up to four times as long.
bool is_volume_alone(const BoundAttrs& attrs, const TensorRef& x, const TensorRef& w);

const char* supports_volume_windows(const KernelQuery& query);
const char* supports_volume_windows_grad(const KernelQuery& query);
int64_t volume_conv_scratch(const BoundCall& call);  // at any sizes
int64_t volume_conv_grad_scratch(const BoundCall& call);
KernelStatus volume_conv(const KernelCall& call, const VolumeForward& forward);
KernelStatus volume_conv_grad(const KernelCall& call, const VolumeBackward& backward);

}  // namespace lowtide::cpu
