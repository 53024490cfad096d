#include "kernels/cpu/windows/resize.h"

#include <cmath>

namespace lowtide::cpu {

int64_t column_bytes(const Resized& resized) { return aligned(resized.large[1] * static_cast<int64_t>(sizeof(Mix))); }

const Mix* columns(const KernelCall& call, const Resized& resized) {
  Mix* mixes = static_cast<Mix*>(call.scratch);
  for (int64_t w = 0; w < resized.large[1]; ++w) mixes[w] = resized.mix(1, w);
  return mixes;
}

namespace {

template <class T>
void resize_of(const KernelCall& call, const Resized& resized) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const Mix* mixes = columns(call, resized);
  ChannelBlocks(x).for_each([&](int64_t n, int64_t first, int64_t channels) {
    by_channel(x, channels, [&](int64_t c, int64_t count) {
      for (int64_t h = 0; h < resized.large[0]; ++h) {
        const Mix rows = resized.mix(0, h);
        const T *above = at<const T>(x, n, first + c, rows.first, 0),
                *below = at<const T>(x, n, first + c, rows.second, 0);
        T* to = at<T>(y, n, first + c, h, 0);
        const float lower = rows.of_second, upper = 1 - lower;
        for (int64_t w = 0; w < resized.large[1]; ++w, to += y.strides[3]) {
          const int64_t left = mixes[w].first * x.strides[3], right = mixes[w].second * x.strides[3];
          if (resized.nearest) {
            std::copy_n(above + left, count, to);
            continue;
          }
          const float east = mixes[w].of_second, west = 1 - east;
          for (int64_t i = 0; i < count; ++i) {
            to[i] = upper * (west * above[left + i] + east * above[right + i]) +
                    lower * (west * below[left + i] + east * below[right + i]);
          }
        }
      }
    });
  });
}

template <class T>
void resize_grad_of(const KernelCall& call, const Resized& resized) {
  const TensorRef& dy = call.inputs[0];
  const Mix* mixes = columns(call, resized);
  KernelCall sums = call;  // whose scratch lies behind
  sums.scratch = static_cast<char*>(call.scratch) + column_bytes(resized);
  sums.scratch_bytes -= column_bytes(resized);
  sum_planes<T>(sums, call.outputs[0], [&](const SummedPlane<T>& run) {
    for (int64_t h = 0; h < resized.large[0]; ++h) {
      const Mix rows = resized.mix(0, h);
      float *above = run.sums() + rows.first * run.row(), *below = run.sums() + rows.second * run.row();
      const T* from = at<const T>(dy, run.n, run.first, h, 0);
      const float lower = rows.of_second, upper = 1 - lower;
      for (int64_t w = 0; w < resized.large[1]; ++w, from += dy.strides[3]) {
        const int64_t left = mixes[w].first * run.col(), right = mixes[w].second * run.col();
        if (resized.nearest) {
          for (int64_t i = 0; i < run.count; ++i) above[left + i] += from[i];
          continue;
        }
        const float east = mixes[w].of_second, west = 1 - east;
        for (int64_t i = 0; i < run.count; ++i) {
          const float g = from[i];
          above[left + i] += upper * west * g;
          above[right + i] += upper * east * g;
          below[left + i] += lower * west * g;
          below[right + i] += lower * east * g;
        }
      }
    }
  });
}

}  // namespace

Resized::Resized(const BoundCall& call, const TensorRef& small_image, const TensorRef& large_image)
    : nearest(call.attrs->s("mode") == "nearest"), align_corners(call.attrs->b("align_corners")) {
  for (int dim = 0; dim < 2; ++dim) {
    small[dim] = small_image.sizes[2 + dim];
    large[dim] = large_image.sizes[2 + dim];
  }
}

Mix Resized::mix(int dim, int64_t at) const {
  const int64_t in = small[dim], out = large[dim];
  if (nearest) {
    const float scale = static_cast<float>(in) / static_cast<float>(out);
    const int64_t from = std::min(static_cast<int64_t>(std::floor(static_cast<float>(at) * scale)), in - 1);
    return {from, from, 0};
  }
  double position;
  if (align_corners) {
    position = out > 1 ? static_cast<double>(at) * static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
  } else {
    position =
        std::max(0.0, (static_cast<double>(at) + 0.5) * static_cast<double>(in) / static_cast<double>(out) - 0.5);
  }
  const int64_t first = std::min(static_cast<int64_t>(position), in - 1);
  const double share = std::clamp(position - static_cast<double>(first), 0.0, 1.0);
  return {first, std::min(first + 1, in - 1), static_cast<float>(share)};
}

int64_t resize_scratch(const BoundCall& call) { return column_bytes(Resized(call)); }

KernelStatus resize(const KernelCall& call, const Resized& resized) {
  with_type(call.inputs[0], [&]<class T>(T) { resize_of<T>(call, resized); });
  return nullptr;
}

int64_t resize_grad_scratch(const BoundCall& call) { return column_bytes(ResizedGrad(call)) + summed_scratch(call); }

KernelStatus resize_grad(const KernelCall& call, const ResizedGrad& resized) {
  with_type(call.inputs[0], [&]<class T>(T) { resize_grad_of<T>(call, resized); });
  return nullptr;
}

}  // namespace lowtide::cpu
