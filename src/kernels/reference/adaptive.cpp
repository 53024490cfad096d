// Means over windows that divide the last two dims as evenly as they can be.
#include <algorithm>

#include "base/parallel.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"

namespace lowtide::reference {

namespace {

// Which of `from` places meet place i of `to`: what a window reads, and the other way round which windows read a place.
struct Reach {
  Reach(int64_t i, int64_t to, int64_t from) : begin(i * from / to), end(((i + 1) * from + to - 1) / to) {}
  int64_t size() const { return end - begin; }
  int64_t begin, end;
};

}  // namespace

AdaptiveMeans::AdaptiveMeans(const TensorRef& large_tensor, const TensorRef& small_tensor) {
  const int spatial = large_tensor.rank - 2;
  for (int i = 0; i < spatial; ++i)
    planes.add_dim(large_tensor.sizes[i], {large_tensor.strides[i], small_tensor.strides[i]});
  for (int i = 0; i < 2; ++i) {
    large.sizes[i] = large_tensor.sizes[spatial + i];
    large.strides[i] = large_tensor.strides[spatial + i];
    small.sizes[i] = small_tensor.sizes[spatial + i];
    small.strides[i] = small_tensor.strides[spatial + i];
  }
}

template <class Body>
void AdaptiveMeans::for_planes(Body body) const {
  const int64_t places = std::max<int64_t>(1, large.sizes[0] * large.sizes[1]);
  parallel_for(planes.numel(), std::max<int64_t>(1, 4096 / places), [&](int64_t begin, int64_t end) {
    planes.for_each(begin, end, [&](int64_t, const auto& at) { body(at[0], at[1]); });
  });
}

KernelStatus adaptive_average_pool(const KernelCall& call, const AdaptiveMeans& means) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const auto &large = means.large, &small = means.small;
  means.for_planes([&](int64_t from, int64_t to) {
    for (int64_t i = 0; i < small.sizes[0]; ++i) {
      const Reach rows(i, small.sizes[0], large.sizes[0]);
      for (int64_t j = 0; j < small.sizes[1]; ++j) {
        const Reach cols(j, small.sizes[1], large.sizes[1]);
        double sum = 0;
        for (int64_t h = rows.begin; h < rows.end; ++h)
          for (int64_t w = cols.begin; w < cols.end; ++w)
            sum += get(x, from + h * large.strides[0] + w * large.strides[1]);
        set(y, to + i * small.strides[0] + j * small.strides[1], sum / static_cast<double>(rows.size() * cols.size()));
      }
    }
  });
  return nullptr;
}

KernelStatus adaptive_average_pool_grad(const KernelCall& call, const AdaptiveMeansGrad& means) {
  const TensorRef &dy = call.inputs[0], &dx = call.outputs[0];
  const auto &large = means.large, &small = means.small;
  means.for_planes([&](int64_t to, int64_t from) {
    for (int64_t h = 0; h < large.sizes[0]; ++h) {
      const Reach rows(h, large.sizes[0], small.sizes[0]);
      for (int64_t w = 0; w < large.sizes[1]; ++w) {
        const Reach cols(w, large.sizes[1], small.sizes[1]);
        double sum = 0;
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          const int64_t tall = Reach(i, small.sizes[0], large.sizes[0]).size();
          for (int64_t j = cols.begin; j < cols.end; ++j) {
            const int64_t area = tall * Reach(j, small.sizes[1], large.sizes[1]).size();
            sum += get(dy, from + i * small.strides[0] + j * small.strides[1]) / static_cast<double>(area);
          }
        }
        set(dx, to + h * large.strides[0] + w * large.strides[1], sum);
      }
    }
  });
  return nullptr;
}

}  // namespace lowtide::reference
