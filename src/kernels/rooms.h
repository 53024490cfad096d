// The rooms of kernels: one folder a family, or a library, with its list, its functions, its loops and its test. An op
// that several rooms serve takes the first that suits, the reference last.
#pragma once

#include "kernels/kernel.h"

#define LT_ROOMS(each)                                                                                         \
  each(attention) each(batch_norm) each(bias) each(convolution) each(copy) each(gemm) each(indices) each(loss) \
      each(norms) each(orders) each(packing) each(pointwise) each(random) each(recurrence) each(reductions)    \
          each(softmax) each(windows) each(blas) each(aten)

namespace lowtide::cpu {

#define LT_ROOM(room) std::span<const Kernel> room##_kernels();
LT_ROOMS(LT_ROOM)
#undef LT_ROOM

}  // namespace lowtide::cpu
