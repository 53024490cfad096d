// Windows of images laid out one after another, and their sums.
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

template <class Body>
void ImageWindows::for_each(const TensorRef& image, const TensorRef& windows, Body body) const {
  int64_t at[6] = {};
  for (int64_t number = 0; number < windows.numel(); ++number) {
    int64_t offset = 0;
    for (int64_t i = 5, rest = number; i >= 0; --i) {
      at[i] = rest % windows.sizes[i];
      rest /= windows.sizes[i];
      offset += at[i] * windows.strides[i];
    }
    const int64_t h = at[4] * strides[0] + at[2] * dilations[0] - pads[0];
    const int64_t w = at[5] * strides[1] + at[3] * dilations[1] - pads[1];
    const bool inside = h >= 0 && h < image.sizes[2] && w >= 0 && w < image.sizes[3];
    const int64_t place =
        at[0] * image.strides[0] + at[1] * image.strides[1] + h * image.strides[2] + w * image.strides[3];
    body(inside ? place : -1, offset);
  }
}

KernelStatus im2col(const KernelCall& call, const ImageWindows& windows) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  windows.for_each(x, y, [&](int64_t from, int64_t to) { set(y, to, from < 0 ? 0.0 : get(x, from)); });
  return nullptr;
}

KernelStatus col2im(const KernelCall& call, const ImageWindows& windows) {
  const TensorRef &y = call.inputs[0], &x = call.outputs[0];
  for (int64_t n = 0; n < x.sizes[0]; ++n)
    for (int64_t c = 0; c < x.sizes[1]; ++c)
      for (int64_t h = 0; h < x.sizes[2]; ++h)
        for (int64_t w = 0; w < x.sizes[3]; ++w)
          set(x, n * x.strides[0] + c * x.strides[1] + h * x.strides[2] + w * x.strides[3], 0.0);
  windows.for_each(x, y, [&](int64_t to, int64_t from) {
    if (to >= 0) set(x, to, get(x, to) + get(y, from));
  });
  return nullptr;
}

}  // namespace lowtide::reference
