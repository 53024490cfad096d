#include "kernels/cpu/windows/im2col.h"

#include <algorithm>

#include "base/parallel.h"

namespace lowtide::cpu {

ImageWindows::ImageWindows(const BoundCall& call, const TensorRef& image, const TensorRef& windows)
    : channels(image.sizes[0] * image.sizes[1]),
      height(image.sizes[2]),
      width(image.sizes[3]),
      rows(windows.sizes[4]),
      cols(windows.sizes[5]) {
  for (size_t i = 0; i < 2; ++i) {
    kernel[i] = windows.sizes[2 + i];
    strides[i] = call.attrs->ints("strides")[i];
    pads[i] = call.attrs->ints("pads")[i];
    dilations[i] = call.attrs->ints("dilations")[i];
  }
}

template <class Body, class Outside>
void ImageWindows::for_lines(Body body, Outside outside) const {
  for (int64_t kh = 0; kh < kernel[0]; ++kh) {
    for (int64_t kw = 0; kw < kernel[1]; ++kw) {
      const int64_t left = kw * dilations[1] - pads[1];
      // Of a line's windows, those whose place is inside.
      const int64_t begin = std::min(cols, left >= 0 ? 0 : (-left + strides[1] - 1) / strides[1]);
      const int64_t end = std::clamp((width - left + strides[1] - 1) / strides[1], begin, cols);
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t h = row * strides[0] + kh * dilations[0] - pads[0];
        const int64_t line = ((kh * kernel[1] + kw) * rows + row) * cols;
        if (h < 0 || h >= height) {
          outside(line, cols);
          continue;
        }
        outside(line, begin);
        body(h * width + left + begin * strides[1], line + begin, end - begin);
        outside(line + end, cols - end);
      }
    }
  }
}

const char* supports_im2col(const KernelQuery& query) {
  return query.inputs[0].dtype == DType::kF32 ? nullptr : "not f32";
}

template <class Body>
static void for_channels(const ImageWindows& windows, float* image, float* columns, Body body) {
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, windows.windows_numel()));
  parallel_for(windows.channels, grain, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i)
      body(image + i * windows.image_numel(), columns + i * windows.windows_numel());
  });
}

KernelStatus im2col(const KernelCall& call, const Im2Col& windows) {
  for_channels(windows, call.inputs[0].as<float>(), call.outputs[0].as<float>(), [&](const float* image, float* to) {
    const int64_t step = windows.strides[1];
    windows.for_lines(
        [&](int64_t from, int64_t line, int64_t n) {
          if (step == 1) {
            std::copy_n(image + from, n, to + line);
          } else {
            for (int64_t i = 0; i < n; ++i) to[line + i] = image[from + i * step];
          }
        },
        [&](int64_t first, int64_t n) { std::fill_n(to + first, n, 0.0f); });
  });
  return nullptr;
}

KernelStatus col2im(const KernelCall& call, const Col2Im& windows) {
  for_channels(windows, call.outputs[0].as<float>(), call.inputs[0].as<float>(), [&](float* image, const float* from) {
    const int64_t step = windows.strides[1];
    std::fill_n(image, windows.image_numel(), 0.0f);
    windows.for_lines(
        [&](int64_t to, int64_t line, int64_t n) {
          if (step == 1) {
            for (int64_t i = 0; i < n; ++i) image[to + i] += from[line + i];
          } else {
            for (int64_t i = 0; i < n; ++i) image[to + i * step] += from[line + i];
          }
        },
        [](int64_t, int64_t) {});
  });
  return nullptr;
}

}  // namespace lowtide::cpu
