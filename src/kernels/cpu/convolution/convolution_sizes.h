// The sizes of a convolution over two spatial dims. Images are channels-last and dense.
#pragma once

#include <cstdint>

namespace lowtide::cpu {

struct ConvolutionSizes {
  int64_t images, channels;
  int64_t x_height, x_width, y_height, y_width;
  int64_t window_height, window_width;
  int64_t down, right;  // strides
  int64_t top, left;    // pads
  int64_t dilation_down, dilation_right;
};

}  // namespace lowtide::cpu
