// Pooling of dense f32 images [N, C, H, W] in either layout: channels-last by runs of channels, row-major by channel.
#include <algorithm>
#include <atomic>
#include <limits>

#include "base/parallel.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"

namespace lowtide::cpu {

namespace {

constexpr int64_t kChannels = 64;  // of one task

// Input rows (or columns) that one output covers: first, then every `dilation`, `taps` of them, `first_tap` the first
// that lies inside.
struct Span {
  int64_t begin, end;
};

constexpr OperandRules kImages = with_output_layout(every_input(Accept::kChannelsLast), OutputLayout::kChannelsLast);

struct Window {
  int64_t kernel[2], strides[2], pads[4], dilations[2] = {1, 1};
  explicit Window(const BoundCall& call) {
    const BoundAttrs& attrs = *call.attrs;
    for (int i = 0; i < 2; ++i) {
      kernel[i] = attrs.ints("kernel_shape")[i];
      strides[i] = attrs.ints("strides")[i];
      pads[i] = attrs.ints("pads")[i];
      pads[i + 2] = attrs.ints("pads")[i + 2];
      if (attrs.has("dilations")) dilations[i] = attrs.ints("dilations")[i];
    }
  }
  // Taps k of output o that read inside [0, size).
  Span taps(int dim, int64_t o, int64_t size) const {
    const int64_t start = o * strides[dim] - pads[dim], d = dilations[dim];
    const int64_t begin = start < 0 ? (-start + d - 1) / d : 0;
    const int64_t end = start < size ? std::min(kernel[dim], (size - start + d - 1) / d) : 0;
    return {begin, std::max(begin, end)};
  }
  int64_t source(int dim, int64_t o, int64_t k) const { return o * strides[dim] - pads[dim] + k * dilations[dim]; }
};

// body(image n, first channel, channels) for blocks of channels of every image, on all threads.
template <class Body>
void for_each_block(const TensorRef& x, Body body) {
  const int64_t blocks = (x.sizes[1] + kChannels - 1) / kChannels;
  parallel_for(x.sizes[0] * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % blocks * kChannels;
      body(task / blocks, first, std::min(kChannels, x.sizes[1] - first));
    }
  });
}

// Calls run(channel, count, step): all channels at once where they lie side by side, else one by one.
template <class Run>
void by_channel(const TensorRef& x, int64_t channels, Run run) {
  if (x.strides[1] == 1) return run(0, channels);
  for (int64_t c = 0; c < channels; ++c) run(c, 1);
}

template <class T>
T* at(const TensorRef& t, int64_t n, int64_t c, int64_t h, int64_t w) {
  return t.as<T>() + n * t.strides[0] + c * t.strides[1] + h * t.strides[2] + w * t.strides[3];
}

template <class T>
void fill_block(const TensorRef& t, int64_t n, int64_t first, int64_t channels, T value) {
  by_channel(t, channels, [&](int64_t c, int64_t count) {
    for (int64_t h = 0; h < t.sizes[2]; ++h) {
      for (int64_t w = 0; w < t.sizes[3]; ++w) std::fill_n(at<T>(t, n, first + c, h, w), count, value);
    }
  });
}

const char* supports_image(const KernelQuery& query) {
  if (query.inputs[0].dtype != DType::kF32) return "not f32";
  return query.inputs[0].rank == 4 ? nullptr : "not two spatial dims";
}
const char* supports_max_pool(const KernelQuery& query) {
  if (!query.outputs[0].present || !query.outputs[1].present) return "values or indices are not wanted";
  return supports_image(query);
}

KernelStatus max_pool(const KernelCall& call, const Window& window) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0], &indices = call.outputs[1];
  for_each_block(x, [&](int64_t n, int64_t first, int64_t channels) {
    by_channel(x, channels, [&](int64_t c, int64_t count) {
      for (int64_t oh = 0; oh < y.sizes[2]; ++oh) {
        const Span rows = window.taps(0, oh, x.sizes[2]);
        for (int64_t ow = 0; ow < y.sizes[3]; ++ow) {
          const Span cols = window.taps(1, ow, x.sizes[3]);
          float best[kChannels] = {};
          int32_t best_at[kChannels] = {};
          bool started = false;
          for (int64_t kh = rows.begin; kh < rows.end; ++kh) {
            for (int64_t kw = cols.begin; kw < cols.end; ++kw) {
              const int64_t h = window.source(0, oh, kh), w = window.source(1, ow, kw);
              const float* from = at<const float>(x, n, first + c, h, w);
              const int32_t flat = static_cast<int32_t>(h * x.sizes[3] + w);
              if (!started) {
                started = true;
                std::copy_n(from, count, best);
                std::fill_n(best_at, count, flat);
                continue;
              }
              for (int64_t i = 0; i < count; ++i) {
                const bool better = from[i] > best[i] || from[i] != from[i];
                best[i] = better ? from[i] : best[i];
                best_at[i] = better ? flat : best_at[i];
              }
            }
          }
          std::copy_n(best, count, at<float>(y, n, first + c, oh, ow));
          int64_t* to = at<int64_t>(indices, n, first + c, oh, ow);
          for (int64_t i = 0; i < count; ++i) to[i] = best_at[i];
        }
      }
    });
  });
  return nullptr;
}

KernelStatus max_pool_grad(const KernelCall& call) {
  const TensorRef &dy = call.inputs[0], &indices = call.inputs[1], &dx = call.outputs[0];
  const int64_t width = dx.sizes[3], plane = dx.sizes[2] * width;
  std::atomic<bool> good = true;
  for_each_block(dx, [&](int64_t n, int64_t first, int64_t channels) {
    fill_block(dx, n, first, channels, 0.0f);
    by_channel(dx, channels, [&](int64_t c, int64_t count) {
      float* to = at<float>(dx, n, first + c, 0, 0);
      for (int64_t oh = 0; oh < dy.sizes[2]; ++oh) {
        for (int64_t ow = 0; ow < dy.sizes[3]; ++ow) {
          const float* from = at<const float>(dy, n, first + c, oh, ow);
          const int64_t* flat = at<const int64_t>(indices, n, first + c, oh, ow);
          for (int64_t i = 0; i < count; ++i) {
            if (flat[i] < 0 || flat[i] >= plane) {
              good = false;
              continue;
            }
            to[flat[i] / width * dx.strides[2] + flat[i] % width * dx.strides[3] + i] += from[i];
          }
        }
      }
    });
  });
  return good ? nullptr : "MaxPoolGrad: an index is out of range";
}

// What one output of an average pool divides by.
float divisor_of(const Window& window, bool include_pad, const TensorRef& x, int64_t oh, int64_t ow) {
  int64_t product = 1;
  const int64_t out[2] = {oh, ow};
  for (int i = 0; i < 2; ++i) {
    const int64_t begin = out[i] * window.strides[i] - window.pads[i];
    const int64_t end = std::min(begin + window.kernel[i], x.sizes[2 + i] + window.pads[2 + i]);
    product *= include_pad ? end - begin : std::min(end, x.sizes[2 + i]) - std::max<int64_t>(begin, 0);
  }
  return static_cast<float>(product);
}

struct Averages : Window {
  explicit Averages(const BoundCall& call) : Window(call), include_pad(call.attrs->b("count_include_pad")) {}
  bool include_pad;
};

KernelStatus average_pool(const KernelCall& call, const Averages& window) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  for_each_block(x, [&](int64_t n, int64_t first, int64_t channels) {
    by_channel(x, channels, [&](int64_t c, int64_t count) {
      for (int64_t oh = 0; oh < y.sizes[2]; ++oh) {
        const Span rows = window.taps(0, oh, x.sizes[2]);
        for (int64_t ow = 0; ow < y.sizes[3]; ++ow) {
          const Span cols = window.taps(1, ow, x.sizes[3]);
          float sum[kChannels] = {};
          for (int64_t kh = rows.begin; kh < rows.end; ++kh) {
            for (int64_t kw = cols.begin; kw < cols.end; ++kw) {
              const float* from = at<const float>(x, n, first + c, window.source(0, oh, kh), window.source(1, ow, kw));
              for (int64_t i = 0; i < count; ++i) sum[i] += from[i];
            }
          }
          const float divisor = divisor_of(window, window.include_pad, x, oh, ow);
          float* to = at<float>(y, n, first + c, oh, ow);
          for (int64_t i = 0; i < count; ++i) to[i] = sum[i] / divisor;
        }
      }
    });
  });
  return nullptr;
}

KernelStatus average_pool_grad(const KernelCall& call, const Averages& window) {
  const TensorRef &dy = call.inputs[0], &dx = call.outputs[0];
  for_each_block(dx, [&](int64_t n, int64_t first, int64_t channels) {
    fill_block(dx, n, first, channels, 0.0f);
    by_channel(dx, channels, [&](int64_t c, int64_t count) {
      for (int64_t oh = 0; oh < dy.sizes[2]; ++oh) {
        const Span rows = window.taps(0, oh, dx.sizes[2]);
        for (int64_t ow = 0; ow < dy.sizes[3]; ++ow) {
          const Span cols = window.taps(1, ow, dx.sizes[3]);
          const float divisor = divisor_of(window, window.include_pad, dx, oh, ow);
          const float* from = at<const float>(dy, n, first + c, oh, ow);
          for (int64_t kh = rows.begin; kh < rows.end; ++kh) {
            for (int64_t kw = cols.begin; kw < cols.end; ++kw) {
              float* to = at<float>(dx, n, first + c, window.source(0, oh, kh), window.source(1, ow, kw));
              for (int64_t i = 0; i < count; ++i) to[i] += from[i] / divisor;
            }
          }
        }
      }
    });
  });
  return nullptr;
}

}  // namespace

std::span<const Kernel> windows_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/windows/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
