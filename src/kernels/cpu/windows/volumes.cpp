#include "kernels/cpu/windows/volumes.h"

#include <atomic>

#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/float_runs.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {
namespace {

constexpr int64_t kPart = 256;  // outputs of a row that are computed together

// Outputs [first, first + count) of a row of which tap k reads inside; the row is read at `source`, `step` apart.
struct Reached {
  int64_t first, count, source;
};
Reached reached(const Window<3>& window, int64_t k, int64_t begin, int64_t end, int64_t width) {
  const int64_t step = window.strides[2], shift = window.source(2, 0, k);  // output o reads o step + shift
  const int64_t first = shift < 0 ? (-shift + step - 1) / step : 0;
  const int64_t past = shift < width ? (width - shift + step - 1) / step : 0;
  const int64_t from = std::max(begin, first);
  return {from, std::max<int64_t>(0, std::min(end, past) - from), from * step + shift};
}

// body(row of the large plane, k) for the rows and the columns k of the window that output row (d, h) reads.
template <class Body>
void for_taps(const Window<3>& window, const Volume& large, int64_t d, int64_t h, Body body) {
  const Span deep = window.taps(0, d, large.sizes[0]), high = window.taps(1, h, large.sizes[1]);
  for (int64_t kd = deep.begin; kd < deep.end; ++kd) {
    for (int64_t kh = high.begin; kh < high.end; ++kh) {
      const int64_t row = window.source(0, d, kd) * large.sizes[1] + window.source(1, h, kh);
      for (int64_t kw = 0; kw < window.kernel[2]; ++kw) body(row, kw);
    }
  }
}

// part(plane, depth, height, first output of the row, past the last) for all of `small`.
template <class Part>
void for_parts(const Volume& small, int64_t plane, Part part) {
  for (int64_t d = 0; d < small.sizes[0]; ++d) {
    for (int64_t h = 0; h < small.sizes[1]; ++h) {
      const int64_t row = (plane * small.sizes[0] + d) * small.sizes[1] + h;
      for (int64_t first = 0; first < small.sizes[2]; first += kPart)
        part(row, d, h, first, std::min(small.sizes[2], first + kPart));
    }
  }
}
template <class Part>
void for_all_parts(const PooledVolumes& pool, Part part) {
  const int64_t work = std::max(pool.large.numel(), pool.small.numel());
  for_row_chunks(pool.small.planes, work, 1, [&](int64_t begin, int64_t count) {
    for (int64_t plane = begin; plane < begin + count; ++plane)
      for_parts(pool.small, plane, [&](auto... at) { part(plane, at...); });
  });
}

// add(plane, sums of its numbers, which are zero at first) for every plane of dx.
template <class Add>
void sum_volumes(const KernelCall& call, const Volume& large, Add add) {
  const TensorRef& dx = call.outputs[0];
  const int64_t numel = large.numel();
  const auto plane_of = [&](int64_t plane, float* sums) {
    std::fill_n(sums, numel, 0.0f);
    add(plane, sums);
  };
  if (dx.dtype == DType::kF32) {
    for_row_chunks(large.planes, numel, 1, [&](int64_t begin, int64_t count) {
      for (int64_t plane = begin; plane < begin + count; ++plane) plane_of(plane, dx.as<float>() + plane * numel);
    });
    return;
  }
  const bool small = large.planes * numel < 20000;
  run_tasks(large.planes, std::max<int64_t>(numel, 1), call.scratch, call.scratch_bytes, small,
            [&](int64_t plane, float* sums) {
              plane_of(plane, sums);
              write(dx, plane * numel, 1, numel, sums);
            });
}

// Outputs [begin, end) of a row, each divided by the places that it counts.
void divide(const float* from, const AverageWindow<3>& window, const Volume& large, int64_t d, int64_t h, int64_t begin,
            int64_t end, float* to) {
  const int64_t area = window.counted(0, d, large.sizes[0]) * window.counted(1, h, large.sizes[1]);
  for (int64_t w = begin; w < end; ++w)
    to[w - begin] = from[w - begin] / static_cast<float>(area * window.counted(2, w, large.sizes[2]));
}

}  // namespace

Volume::Volume(const TensorRef& tensor) : planes(tensor.sizes[0] * tensor.sizes[1]) {
  for (int i = 2; i < tensor.rank; ++i) sizes[3 - tensor.rank + i] = tensor.sizes[i];
}

const char* supports_volumes(const KernelQuery& query) {
  const DType dtype = query.inputs[0].dtype;
  if (dtype != DType::kF32 && !is_half(dtype)) return "neither f32, bf16 nor f16";
  if (query.outputs[0].dtype != dtype) return "mixed dtypes";
  return query.inputs[0].rank == 3 || query.inputs[0].rank == 5 ? nullptr : "neither one nor three spatial dims";
}

const char* supports_max_volumes(const KernelQuery& query) {
  if (!query.outputs[0].present) return "values are not wanted";
  return supports_volumes(query);
}

int64_t summed_volumes_scratch(const BoundCall& call) {
  const TensorRef& dx = call.outputs[0];
  if (dx.dtype == DType::kF32) return 0;
  return std::max<int64_t>(Volume(dx).numel(), 1) * kFloatBytes * parallel_threads();
}

KernelStatus max_pool_volumes(const KernelCall& call, const MaxVolumes& pool) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const TensorRef* indices = output(call, 1);
  const int64_t width = pool.large.sizes[2], step = pool.strides[2];
  for_all_parts(pool, [&](int64_t plane, int64_t out, int64_t d, int64_t h, int64_t begin, int64_t end) {
    float best[kPart];
    int32_t best_at[kPart];
    std::fill_n(best, kPart, 0.0f);
    std::fill_n(best_at, kPart, -1);
    for_taps(pool, pool.large, d, h, [&](int64_t row, int64_t k) {
      const auto [first, count, source] = reached(pool, k, begin, end, width);
      if (count == 0) return;
      float buffer[kPart];
      const float* from = read(x, plane * pool.large.numel() + row * width + source, step, count, buffer);
      const int32_t place = static_cast<int32_t>(row * width + source), apart = static_cast<int32_t>(step);
      float* values = best + (first - begin);
      int32_t* places = best_at + (first - begin);
      for (int32_t i = 0; i < count; ++i) {
        const float value = from[i];
        const bool better = (places[i] < 0) | (value > values[i]) | (value != value);
        values[i] = better ? value : values[i];
        places[i] = better ? place + i * apart : places[i];
      }
    });
    const int64_t to = out * pool.small.sizes[2] + begin;
    write(y, to, 1, end - begin, best);
    if (indices != nullptr) std::copy_n(best_at, end - begin, indices->as<int64_t>() + to);
  });
  return nullptr;
}

KernelStatus max_pool_grad_volumes(const KernelCall& call, const MaxGradVolumes& pool) {
  const TensorRef& dy = call.inputs[0];
  const int64_t* indices = call.inputs[1].as<const int64_t>();
  const int64_t outputs = pool.small.numel(), numel = pool.large.numel();
  std::atomic<bool> good = true;
  sum_volumes(call, pool.large, [&](int64_t plane, float* sums) {
    for (int64_t first = 0; first < outputs; first += kRun) {
      float buffer[kRun];
      const int64_t n = std::min(kRun, outputs - first), at = plane * outputs + first;
      const float* from = read(dy, at, 1, n, buffer);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t flat = indices[at + i];
        if (flat < 0 || flat >= numel) {
          good = false;
          continue;
        }
        sums[flat] += from[i];
      }
    }
  });
  return good ? nullptr : "MaxPoolGrad: an index is out of range";
}

KernelStatus average_pool_volumes(const KernelCall& call, const AverageVolumes& pool) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const int64_t width = pool.large.sizes[2];
  for_all_parts(pool, [&](int64_t plane, int64_t out, int64_t d, int64_t h, int64_t begin, int64_t end) {
    float sums[kPart] = {};
    for_taps(pool, pool.large, d, h, [&](int64_t row, int64_t k) {
      const auto [first, count, source] = reached(pool, k, begin, end, width);
      if (count == 0) return;
      float buffer[kPart];
      const float* from = read(x, plane * pool.large.numel() + row * width + source, pool.strides[2], count, buffer);
      float* to = sums + (first - begin);
      for (int64_t i = 0; i < count; ++i) to[i] += from[i];
    });
    divide(sums, pool, pool.large, d, h, begin, end, sums);
    write(y, out * pool.small.sizes[2] + begin, 1, end - begin, sums);
  });
  return nullptr;
}

KernelStatus average_pool_grad_volumes(const KernelCall& call, const AverageGradVolumes& pool) {
  const TensorRef& dy = call.inputs[0];
  const int64_t width = pool.large.sizes[2], step = pool.strides[2];
  sum_volumes(call, pool.large, [&](int64_t plane, float* sums) {
    for_parts(pool.small, plane, [&](int64_t out, int64_t d, int64_t h, int64_t begin, int64_t end) {
      float buffer[kPart], shares[kPart];
      const float* from = read(dy, out * pool.small.sizes[2] + begin, 1, end - begin, buffer);
      divide(from, pool, pool.large, d, h, begin, end, shares);
      for_taps(pool, pool.large, d, h, [&](int64_t row, int64_t k) {
        const auto [first, count, source] = reached(pool, k, begin, end, width);
        const float* share = shares + (first - begin);
        float* to = sums + row * width + source;
        for (int64_t i = 0; i < count; ++i) to[i * step] += share[i];
      });
    });
  });
  return nullptr;
}

}  // namespace lowtide::cpu
