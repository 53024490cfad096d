// Pooling of images. bf16 and f16 are summed as floats and rounded once.
#include <atomic>
#include <limits>

#include "kernels/cpu/windows/adaptive.h"
#include "kernels/cpu/windows/im2col.h"
#include "kernels/cpu/windows/images.h"
#include "kernels/cpu/windows/nearest.h"
#include "kernels/cpu/windows/resize.h"
#include "kernels/cpu/windows/volumes.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"

namespace lowtide::cpu {

namespace {

const char* supports_max_pool(const KernelQuery& query) {
  if (!query.outputs[0].present) return "values are not wanted";
  return supports_image(query);
}

// body(oh, ow, rows, cols) for each place of the small images, with the taps that read inside of the large ones.
template <class Body>
void for_each_window(const Window<2>& window, const TensorRef& small, const TensorRef& large, Body body) {
  for (int64_t oh = 0; oh < small.sizes[2]; ++oh) {
    const Span rows = window.taps(0, oh, large.sizes[2]);
    for (int64_t ow = 0; ow < small.sizes[3]; ++ow) body(oh, ow, rows, window.taps(1, ow, large.sizes[3]));
  }
}

struct MaxWindow : Window<2> {
  explicit MaxWindow(const BoundCall& call) : Window<2>(call), offsets(call.attrs->b("offsets", false)) {}
  bool offsets;
};

template <class T, class Index>
void max_pool_of(const KernelCall& call, const MaxWindow& window) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0], *indices = output(call, 1);
  ChannelBlocks(x).for_each([&](int64_t n, int64_t first, int64_t channels) {
    by_channel(x, channels, [&](int64_t c, int64_t count) {
      for_each_window(window, y, x, [&](int64_t oh, int64_t ow, Span rows, Span cols) {
        float best[kChannels] = {};
        int32_t best_at[kChannels] = {};
        bool started = false;
        for (int64_t kh = rows.begin; kh < rows.end; ++kh) {
          for (int64_t kw = cols.begin; kw < cols.end; ++kw) {
            const int64_t h = window.source(0, oh, kh), w = window.source(1, ow, kw);
            const T* from = at<const T>(x, n, first + c, h, w);
            const auto place = static_cast<int32_t>(window.offsets ? kh * window.kernel[1] + kw : h * x.sizes[3] + w);
            if (!started) {
              started = true;
              for (int64_t i = 0; i < count; ++i) best[i] = from[i];
              std::fill_n(best_at, count, place);
              continue;
            }
            for (int64_t i = 0; i < count; ++i) {
              const float value = from[i];
              const bool better = value > best[i] || value != value;
              best[i] = better ? value : best[i];
              best_at[i] = better ? place : best_at[i];
            }
          }
        }
        T* to = at<T>(y, n, first + c, oh, ow);
        for (int64_t i = 0; i < count; ++i) to[i] = best[i];
        if (indices == nullptr) return;
        Index* places = at<Index>(*indices, n, first + c, oh, ow);
        for (int64_t i = 0; i < count; ++i) places[i] = static_cast<Index>(best_at[i]);
      });
    });
  });
}

KernelStatus max_pool(const KernelCall& call, const MaxWindow& window) {
  with_type(call.inputs[0], [&]<class T>(T) {
    window.offsets ? max_pool_of<T, uint8_t>(call, window) : max_pool_of<T, int64_t>(call, window);
  });
  return nullptr;
}

const char* supports_max_pool_grad(const KernelQuery& query) {
  if (query.attrs->has("kernel_shape")) return "places in windows";
  return supports_image(query);
}
const char* supports_max_pool_offsets(const KernelQuery& query) {
  if (!query.attrs->has("kernel_shape")) return "no places in windows";
  return supports_image(query);
}

KernelStatus max_pool_grad(const KernelCall& call) {
  const TensorRef &dy = call.inputs[0], &indices = call.inputs[1], &dx = call.outputs[0];
  const int64_t width = dx.sizes[3], plane = dx.sizes[2] * width;
  std::atomic<bool> good = true;
  with_type(dx, [&]<class T>(T) {
    sum_planes<T>(call, dx, [&](const SummedPlane<T>& run) {
      float* to = run.sums();
      const int64_t row = run.row(), col = run.col();
      for (int64_t oh = 0; oh < dy.sizes[2]; ++oh) {
        for (int64_t ow = 0; ow < dy.sizes[3]; ++ow) {
          const T* from = at<const T>(dy, run.n, run.first, oh, ow);
          const int64_t* flat = at<const int64_t>(indices, run.n, run.first, oh, ow);
          for (int64_t i = 0; i < run.count; ++i) {
            if (flat[i] < 0 || flat[i] >= plane) {
              good = false;
              continue;
            }
            to[flat[i] / width * row + flat[i] % width * col + i] += from[i];
          }
        }
      }
    });
  });
  return good ? nullptr : "MaxPoolGrad: an index is out of range";
}

// Of places in windows.
KernelStatus max_pool_grad_of_offsets(const KernelCall& call, const Window<2>& window) {
  const TensorRef &dy = call.inputs[0], &places = call.inputs[1], &dx = call.outputs[0];
  std::atomic<bool> good = true;
  with_type(dx, [&]<class T>(T) {
    sum_planes<T>(call, dx, [&](const SummedPlane<T>& run) {
      for_each_window(window, dy, dx, [&](int64_t oh, int64_t ow, Span rows, Span cols) {
        int64_t moves[256];  // by place: from the plane's first sum; -1: outside of it
        std::fill_n(moves, 256, -1);
        for (int64_t kh = rows.begin; kh < rows.end; ++kh)
          for (int64_t kw = cols.begin; kw < cols.end; ++kw)
            moves[kh * window.kernel[1] + kw] =
                window.source(0, oh, kh) * run.row() + window.source(1, ow, kw) * run.col();
        const T* from = at<const T>(dy, run.n, run.first, oh, ow);
        const uint8_t* place = at<const uint8_t>(places, run.n, run.first, oh, ow);
        for (int64_t i = 0; i < run.count; ++i) {
          const int64_t move = moves[place[i]];
          if (move < 0) {
            good = false;
            continue;
          }
          run.sums()[move + i] += from[i];
        }
      });
    });
  });
  return good ? nullptr : "MaxPoolGrad: an index is out of range";
}

// What one output of an average pool divides by.
float divisor_of(const AverageWindow<2>& window, const TensorRef& x, int64_t oh, int64_t ow) {
  return static_cast<float>(window.counted(0, oh, x.sizes[2]) * window.counted(1, ow, x.sizes[3]));
}

template <class T>
void average_pool_of(const KernelCall& call, const AverageWindow<2>& window) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  ChannelBlocks(x).for_each([&](int64_t n, int64_t first, int64_t channels) {
    by_channel(x, channels, [&](int64_t c, int64_t count) {
      for_each_window(window, y, x, [&](int64_t oh, int64_t ow, Span rows, Span cols) {
        float sum[kChannels] = {};
        for (int64_t kh = rows.begin; kh < rows.end; ++kh) {
          for (int64_t kw = cols.begin; kw < cols.end; ++kw) {
            const T* from = at<const T>(x, n, first + c, window.source(0, oh, kh), window.source(1, ow, kw));
            for (int64_t i = 0; i < count; ++i) sum[i] += from[i];
          }
        }
        const float divisor = divisor_of(window, x, oh, ow);
        T* to = at<T>(y, n, first + c, oh, ow);
        for (int64_t i = 0; i < count; ++i) to[i] = sum[i] / divisor;
      });
    });
  });
}

KernelStatus average_pool(const KernelCall& call, const AverageWindow<2>& window) {
  with_type(call.inputs[0], [&]<class T>(T) { average_pool_of<T>(call, window); });
  return nullptr;
}

KernelStatus average_pool_grad(const KernelCall& call, const AverageWindow<2>& window) {
  const TensorRef &dy = call.inputs[0], &dx = call.outputs[0];
  with_type(dx, [&]<class T>(T) {
    sum_planes<T>(call, dx, [&](const SummedPlane<T>& run) {
      for_each_window(window, dy, dx, [&](int64_t oh, int64_t ow, Span rows, Span cols) {
        const float divisor = divisor_of(window, dx, oh, ow);
        const T* from = at<const T>(dy, run.n, run.first, oh, ow);
        for (int64_t kh = rows.begin; kh < rows.end; ++kh) {
          for (int64_t kw = cols.begin; kw < cols.end; ++kw) {
            float* to = run.sums() + window.source(0, oh, kh) * run.row() + window.source(1, ow, kw) * run.col();
            for (int64_t i = 0; i < run.count; ++i) to[i] += from[i] / divisor;
          }
        }
      });
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
