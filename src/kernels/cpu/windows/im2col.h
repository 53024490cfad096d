// Im2Col and Col2Im of row-major f32 images: channels are shared among threads, lines of windows copied or added whole.
#pragma once

#include "kernels/cpu/dense.h"
#include "kernels/rule_sets.h"

namespace lowtide::cpu {

struct ImageWindows {
  ImageWindows(const BoundCall& call, const TensorRef& image, const TensorRef& windows);

  // body(line of the windows' places that are inside, in the image; the same in the windows) for one channel of one
  // image; what of the windows is outside is handed to outside(first, count), in the windows.
  template <class Body, class Outside>
  void for_lines(Body body, Outside outside) const;

  int64_t channels;  // of all images
  int64_t height, width, kernel[2], strides[2], pads[2], dilations[2], rows, cols;
  int64_t image_numel() const { return height * width; }
  int64_t windows_numel() const { return kernel[0] * kernel[1] * rows * cols; }
};

struct Im2Col : ImageWindows {
  explicit Im2Col(const BoundCall& call) : ImageWindows(call, call.inputs[0], call.outputs[0]) {}
};
struct Col2Im : ImageWindows {
  explicit Col2Im(const BoundCall& call) : ImageWindows(call, call.outputs[0], call.inputs[0]) {}
};

const char* supports_im2col(const KernelQuery& query);
KernelStatus im2col(const KernelCall& call, const Im2Col& windows);
KernelStatus col2im(const KernelCall& call, const Col2Im& windows);

}  // namespace lowtide::cpu
