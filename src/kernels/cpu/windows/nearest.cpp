#include "kernels/cpu/windows/nearest.h"

namespace lowtide::cpu {
namespace {

// Of the large image's columns, the first that takes the small image's column `at` or a later one.
int64_t first_of(const Resized& resized, int dim, int64_t at) {
  const int64_t in = resized.small[dim], out = resized.large[dim];
  int64_t first = std::min(out, at * out / std::max<int64_t>(1, in));
  while (first > 0 && resized.mix(dim, first - 1).first >= at) --first;
  while (first < out && resized.mix(dim, first).first < at) ++first;
  return first;
}

int64_t images_of(const TensorRef& tensor) { return tensor.sizes[0] * tensor.sizes[1]; }

int64_t grain_of(const Resized& resized) {
  return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, resized.large[0] * resized.large[1]));
}

// A line of `small` columns, each twice.
void double_line(const float* from, int64_t small, float* to) {
  for (int64_t w = 0; w < small; ++w) to[2 * w] = to[2 * w + 1] = from[w];
}

void sum_pairs(const float* from, int64_t small, float* to) {
  for (int64_t w = 0; w < small; ++w) to[w] = from[2 * w] + from[2 * w + 1];
}

}  // namespace

const char* supports_nearest_rows(const KernelQuery& query) {
  if (query.inputs[0].dtype != DType::kF32 || query.outputs[0].dtype != DType::kF32) return "not f32";
  if (query.attrs->s("mode") != "nearest") return "mixes";
  if (query.inputs[0].rank != 4) return "not two spatial dims";
  return query.inputs[0].layout == Layout::kRowMajor ? nullptr : "channels side by side";
}

KernelStatus resize_rows(const KernelCall& call, const Resized& resized) {
  const int64_t height = resized.small[0], width = resized.small[1], tall = resized.large[0], wide = resized.large[1];
  const Mix* mixes = columns(call, resized);
  parallel_for(images_of(call.inputs[0]), grain_of(resized), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const float* x = call.inputs[0].as<float>() + n * height * width;
      float* y = call.outputs[0].as<float>() + n * tall * wide;
      int64_t last = -1;
      for (int64_t h = 0; h < tall; ++h, y += wide) {
        const int64_t row = resized.mix(0, h).first;
        const float* from = x + row * width;
        if (row == last)
          std::copy_n(y - wide, wide, y);
        else if (wide == 2 * width)
          double_line(from, width, y);
        else
          for (int64_t w = 0; w < wide; ++w) y[w] = from[mixes[w].first];
        last = row;
      }
    }
  });
  return nullptr;
}

int64_t resize_rows_grad_scratch(const BoundCall& call) {
  return column_bytes(ResizedGrad(call)) + aligned(call.inputs[0].sizes[3] * kFloatBytes) * parallel_threads();
}

// Lines of dy that go to one line are added first, then neighbours.
KernelStatus resize_rows_grad(const KernelCall& call, const ResizedGrad& resized) {
  const int64_t height = resized.small[0], width = resized.small[1], tall = resized.large[0], wide = resized.large[1];
  const int64_t images = images_of(call.inputs[0]), slot = aligned(wide * kFloatBytes) / kFloatBytes;
  if (images == 0 || height == 0 || width == 0) return nullptr;
  if (slot == 0) {
    std::fill_n(call.outputs[0].as<float>(), call.outputs[0].numel(), 0.0f);
    return nullptr;
  }
  const Mix* mixes = columns(call, resized);
  char* lines = static_cast<char*>(call.scratch) + column_bytes(resized);
  const int64_t grain = grain_of(resized), tasks = (images + grain - 1) / grain;
  run_tasks(tasks, slot, lines, call.scratch_bytes - column_bytes(resized), tasks == 1, [&](int64_t task, float* line) {
    for (int64_t n = task * grain; n < std::min(images, (task + 1) * grain); ++n) {
      const float* dy = call.inputs[0].as<float>() + n * tall * wide;
      float* dx = call.outputs[0].as<float>() + n * height * width;
      for (int64_t row = 0, h = 0; row < height; ++row, dx += width) {
        const int64_t next = first_of(resized, 0, row + 1);
        std::fill_n(line, wide, 0.0f);
        for (; h < next; ++h) {
          for (int64_t w = 0; w < wide; ++w) line[w] += dy[h * wide + w];
        }
        if (wide == 2 * width) {
          sum_pairs(line, width, dx);
          continue;
        }
        std::fill_n(dx, width, 0.0f);
        for (int64_t w = 0; w < wide; ++w) dx[mixes[w].first] += line[w];
      }
    }
  });
  return nullptr;
}

}  // namespace lowtide::cpu
