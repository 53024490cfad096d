// What depthwise_isa.cpp hands to depthwise_convolution.cpp: serial loops of the gradients of a convolution in which
// each channel has a window of its own.
#pragma once

#include "kernels/cpu/convolution/convolution_sizes.h"
#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

// Of images whose numbers are all stored alike.
struct DepthwiseLoops {
  // Lines [begin, end) of dx, which are images * x_height. `windows`: [window_height, window_width, channels].
  void (*lines)(const ConvolutionSizes& sizes, const void* dy, const float* windows, void* dx, int64_t begin,
                int64_t end);
  // sums[window_height, window_width, channels] of channels [first, first + count), count <= channels_at_once, and of
  // images [begin, end); what is there is overwritten.
  void (*sums)(const ConvolutionSizes& sizes, const void* dy, const void* x, float* sums, int64_t begin, int64_t end,
               int64_t first, int64_t count);
};

struct DepthwiseTable {
  int64_t channels_at_once;  // of one task of `sums`
  DepthwiseLoops f32, bf16, f16;
};

LT_ISA_TABLES(DepthwiseTable, depthwise_table)

}  // namespace lowtide::cpu
