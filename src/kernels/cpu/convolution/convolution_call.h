// The sizes of a convolution as a call has them.
#pragma once

#include <cstring>

#include "kernels/cpu/convolution/convolution_sizes.h"
#include "kernels/strided.h"

namespace lowtide::cpu {

inline ConvolutionSizes sizes_of(const BoundAttrs& attrs, const TensorRef& x, const TensorRef& w, const TensorRef& y) {
  const std::span<const int64_t> strides = attrs.ints("strides"), pads = attrs.ints("pads"),
                                 dilations = attrs.ints("dilations");
  return {x.sizes[0], x.sizes[1], x.sizes[2], x.sizes[3], y.sizes[2], y.sizes[3],   w.sizes[2],
          w.sizes[3], strides[0], strides[1], pads[0],    pads[1],    dilations[0], dilations[1]};
}

// Whether nothing is multiplied: the gradients that are wanted are zeros then, which are written.
inline bool are_zeros(const KernelCall& call, const TensorRef& dy, const TensorRef& w) {
  if (dy.numel() != 0 && w.numel() != 0) return false;
  for (size_t i = 0; i < 3; ++i)
    if (const TensorRef* none = output(call, i)) std::memset(none->data, 0, none->numel() * size_bytes(none->dtype));
  return true;
}

}  // namespace lowtide::cpu
