// Convolutions over two spatial dims as products of matrices whose rows are places of the images: the list of the room
// has them. Windows are read where they lie, nothing is written out.
#pragma once

#include "kernels/cpu/convolution/convolution_sizes.h"
#include "kernels/kernel.h"

namespace lowtide::cpu {

struct WindowConvolution : ConvolutionSizes {
  WindowConvolution(const BoundCall& call, const TensorRef& x, const TensorRef& w, const TensorRef& y);

  int64_t groups, outputs;  // channels of y
};

struct WindowForward : WindowConvolution {
  explicit WindowForward(const BoundCall& call)
      : WindowConvolution(call, call.inputs[0], call.inputs[1], call.outputs[0]) {}
};
// Inputs: dy, x, w. Outputs: dx, dw, db.
struct WindowBackward : WindowConvolution {
  explicit WindowBackward(const BoundCall& call)
      : WindowConvolution(call, call.inputs[1], call.inputs[2], call.inputs[0]) {}
};

const char* supports_windows(const KernelQuery& query);
const char* supports_windows_grad(const KernelQuery& query);
int64_t window_conv_scratch(const BoundCall& call);
int64_t window_conv_grad_scratch(const BoundCall& call);
KernelStatus window_conv(const KernelCall& call, const WindowForward& forward);
KernelStatus window_conv_grad(const KernelCall& call, const WindowBackward& backward);

}  // namespace lowtide::cpu
