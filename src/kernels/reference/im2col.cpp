// Windows of images laid out one after another, and their sums.
#include <algorithm>

#include "base/parallel.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"

namespace lowtide::reference {

ImageWindows::ImageWindows(const BoundCall& call) {
  for (size_t i = 0; i < 2; ++i) {
    strides[i] = call.attrs->ints("strides")[i];
    pads[i] = call.attrs->ints("pads")[i];
    dilations[i] = call.attrs->ints("dilations")[i];
  }
}

// Each plane's windows in row-major order: of its places in the image too the sums are made in that order.
template <class Body>
void ImageWindows::for_rows(const TensorRef& image, const TensorRef& windows, Body body) const {
  const int64_t *sizes = windows.sizes, *steps = windows.strides, channels = sizes[1];
  const int64_t plane_places = std::max<int64_t>(1, product(sizes, 2, 6));
  parallel_for(sizes[0] * channels, std::max<int64_t>(1, 4096 / plane_places), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const int64_t n = plane / channels, c = plane % channels;
      const int64_t in_image = n * image.strides[0] + c * image.strides[1];
      for (int64_t kh = 0; kh < sizes[2]; ++kh) {
        for (int64_t kw = 0; kw < sizes[3]; ++kw) {
          const int64_t left = kw * dilations[1] - pads[1];
          const int64_t in_windows = n * steps[0] + c * steps[1] + kh * steps[2] + kw * steps[3];
          for (int64_t i = 0; i < sizes[4]; ++i) {
            const int64_t h = i * strides[0] + kh * dilations[0] - pads[0];
            const bool inside = h >= 0 && h < image.sizes[2];
            body(Row{in_image + h * image.strides[2], inside, left, in_windows + i * steps[4]});
          }
        }
      }
    }
  });
}

KernelStatus im2col(const KernelCall& call, const ImageWindows& windows) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  windows.for_rows(x, y, [&](const ImageWindows::Row& row) {
    for (int64_t j = 0; j < y.sizes[5]; ++j) {
      const int64_t w = j * windows.strides[1] + row.left;
      const bool inside = row.inside && w >= 0 && w < x.sizes[3];
      set(y, row.in_windows + j * y.strides[5], inside ? get(x, row.in_image + w * x.strides[3]) : 0.0);
    }
  });
  return nullptr;
}

KernelStatus col2im(const KernelCall& call, const ImageWindows& windows) {
  const TensorRef &y = call.inputs[0], &x = call.outputs[0];
  const double zeros[kRun] = {};
  for (int64_t n = 0; n < x.sizes[0]; ++n)
    for (int64_t c = 0; c < x.sizes[1]; ++c)
      for (int64_t h = 0; h < x.sizes[2]; ++h)
        for (int64_t w = 0; w < x.sizes[3]; w += kRun)
          store(x, n * x.strides[0] + c * x.strides[1] + h * x.strides[2] + w * x.strides[3], x.strides[3],
                std::min(kRun, x.sizes[3] - w), zeros);
  windows.for_rows(x, y, [&](const ImageWindows::Row& row) {
    if (!row.inside) return;
    for (int64_t j = 0; j < y.sizes[5]; ++j) {
      const int64_t w = j * windows.strides[1] + row.left;
      if (w < 0 || w >= x.sizes[3]) continue;
      const int64_t to = row.in_image + w * x.strides[3];
      set(x, to, get(x, to) + get(y, row.in_windows + j * y.strides[5]));
    }
  });
  return nullptr;
}

}  // namespace lowtide::reference
