// Dense images [N, C, H, W] in either layout, of f32, bf16 or f16: channels-last by runs of channels, row-major by
// channel.
#pragma once

#include <algorithm>

#include "base/half.h"
#include "kernels/cpu/dense.h"
#include "kernels/rule_sets.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {

constexpr int64_t kChannels = 64;        // of one task
constexpr int64_t kSummedChannels = 16;  // of one that sums a plane of halves in its scratch

inline const char* supports_image(const KernelQuery& query) {
  const DType dtype = query.inputs[0].dtype;
  if (dtype != DType::kF32 && !is_half(dtype)) return "neither f32, bf16 nor f16";
  if (query.outputs[0].dtype != dtype) return "mixed dtypes";
  return query.inputs[0].rank == 4 ? nullptr : "not two spatial dims";
}

// Blocks of channels of every image, each a task: body(image n, first channel, channels).
struct ChannelBlocks {
  int64_t images, channels, most;

  explicit ChannelBlocks(const TensorRef& x, int64_t most = kChannels)
      : images(x.sizes[0]), channels(x.sizes[1]), most(most) {}
  int64_t tasks() const { return images * ((channels + most - 1) / most); }

  template <class Body>
  void run(int64_t task, Body body) const {
    const int64_t blocks = (channels + most - 1) / most, first = task % blocks * most;
    body(task / blocks, first, std::min(most, channels - first));
  }
  template <class Body>
  void for_each(Body body) const {
    parallel_for(tasks(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) run(task, body);
    });
  }
};

// Calls run(channel, count): all channels at once where they lie side by side, else one by one.
template <class Run>
void by_channel(const TensorRef& x, int64_t channels, Run run) {
  if (x.strides[1] == 1) return run(0, channels);
  for (int64_t c = 0; c < channels; ++c) run(c, 1);
}

template <class T>
T* at(const TensorRef& t, int64_t n, int64_t c, int64_t h, int64_t w) {
  return t.as<T>() + n * t.strides[0] + c * t.strides[1] + h * t.strides[2] + w * t.strides[3];
}

// body(T{}) with the type that an image is stored in.
template <class Body>
void with_type(const TensorRef& image, Body body) {
  if (image.dtype == DType::kF32)
    body(float{});
  else if (image.dtype == DType::kBF16)
    body(BFloat16{});
  else
    body(Float16{});
}

// Floats of scratch that a thread needs to sum channels of dx.
inline int64_t slot_numbers(const TensorRef& dx) {
  const int64_t together = dx.strides[1] == 1 ? std::min(dx.sizes[1], kSummedChannels) : 1;
  return std::max<int64_t>(1, (dx.sizes[2] * dx.sizes[3] * together + 15) / 16 * 16);
}
inline int64_t summed_scratch(const BoundCall& call) {
  const TensorRef& dx = call.outputs[0];
  return dx.dtype == DType::kF32 ? 0 : slot_numbers(dx) * kFloatBytes * parallel_threads();
}

// Sums of one run of channels of an image: in the image itself, or in scratch where that holds halves.
template <class T>
struct SummedPlane {
  TensorRef dx;
  int64_t n, first, count;
  float* own;

  int64_t row() const { return std::is_same_v<T, float> ? dx.strides[2] : dx.sizes[3] * count; }
  int64_t col() const { return std::is_same_v<T, float> ? dx.strides[3] : count; }
  float* sums() const {
    if constexpr (std::is_same_v<T, float>)
      return at<float>(dx, n, first, 0, 0);
    else
      return own;
  }
  void clear() const {
    if constexpr (std::is_same_v<T, float>) {
      for (int64_t h = 0; h < dx.sizes[2]; ++h) {
        for (int64_t w = 0; w < dx.sizes[3]; ++w) std::fill_n(at<float>(dx, n, first, h, w), count, 0.0f);
      }
    } else {
      std::fill_n(own, dx.sizes[2] * dx.sizes[3] * count, 0.0f);
    }
  }
  void store() const {
    if constexpr (std::is_same_v<T, float>) return;
    const float* from = own;
    for (int64_t h = 0; h < dx.sizes[2]; ++h) {
      for (int64_t w = 0; w < dx.sizes[3]; ++w, from += count) {
        T* to = at<T>(dx, n, first, h, w);
        for (int64_t i = 0; i < count; ++i) to[i] = from[i];
      }
    }
  }
};

// add(plane) for every run of channels of every image, whose sums are zero at first.
template <class T, class Add>
void sum_planes(const KernelCall& call, const TensorRef& dx, Add add) {
  const ChannelBlocks blocks(dx, std::is_same_v<T, float> ? kChannels : kSummedChannels);
  const auto body = [&](int64_t task, float* own) {
    blocks.run(task, [&](int64_t n, int64_t first, int64_t channels) {
      by_channel(dx, channels, [&](int64_t c, int64_t count) {
        const SummedPlane<T> plane{dx, n, first + c, count, own};
        plane.clear();
        add(plane);
        plane.store();
      });
    });
  };
  if constexpr (std::is_same_v<T, float>) {
    parallel_for(blocks.tasks(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) body(task, nullptr);
    });
  } else {
    run_tasks(blocks.tasks(), slot_numbers(dx), call.scratch, call.scratch_bytes, false, body);
  }
}

}  // namespace lowtide::cpu
