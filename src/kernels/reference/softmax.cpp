#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

// body(offsets, size, strides along the axis) per row of N tensors of one shape.
template <size_t N, class Body>
static KernelStatus for_each_row(const Axis& along, const std::array<const TensorRef*, N>& tensors, Body body) {
  TensorRef shape = *tensors[0];
  const int64_t axis = shape.rank == 0 ? 0 : along.axis;
  std::array<Strides, N> strides;
  std::array<int64_t, N> steps;
  for (size_t t = 0; t < N; ++t) {
    strides[t] = strides_of(*tensors[t]);
    steps[t] = strides[t].at[axis];
  }
  const int64_t size = shape.rank == 0 ? 1 : shape.sizes[axis];
  const Grid<N> rows = rows_over<N>(shape, axis, strides);
  parallel_for(rows.numel(), std::max<int64_t>(1, 1024 / std::max<int64_t>(size, 1)), [&](int64_t begin, int64_t end) {
    rows.for_each(begin, end, [&](int64_t, const auto& offsets) { body(offsets, size, steps); });
  });
  return nullptr;
}

// Largest value and sum of exp(x - largest); NaN if the row is all -inf or holds NaN.
struct RowScale {
  double largest, sum;
};
static RowScale scale_of(const TensorRef& x, int64_t offset, int64_t stride, int64_t size) {
  double largest = -kInfinity, sum = 0;
  for (int64_t i = 0; i < size; ++i) largest = std::max(largest, get(x, offset + i * stride));
  for (int64_t i = 0; i < size; ++i) sum += std::exp(get(x, offset + i * stride) - largest);
  return {largest, sum};
}

KernelStatus softmax(const KernelCall& call, const Axis& along) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  return for_each_row<2>(along, {&x, &y}, [&](const auto& offsets, int64_t size, const auto& steps) {
    const RowScale scale = scale_of(x, offsets[0], steps[0], size);
    for (int64_t i = 0; i < size; ++i) {
      set(y, offsets[1] + i * steps[1], std::exp(get(x, offsets[0] + i * steps[0]) - scale.largest) / scale.sum);
    }
  });
}

KernelStatus log_softmax(const KernelCall& call, const Axis& along) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  return for_each_row<2>(along, {&x, &y}, [&](const auto& offsets, int64_t size, const auto& steps) {
    const RowScale scale = scale_of(x, offsets[0], steps[0], size);
    const double log_sum = std::log(scale.sum);
    for (int64_t i = 0; i < size; ++i) {
      set(y, offsets[1] + i * steps[1], get(x, offsets[0] + i * steps[0]) - scale.largest - log_sum);
    }
  });
}

KernelStatus softmax_grad(const KernelCall& call, const Axis& along) {
  const TensorRef &dy = call.inputs[0], &y = call.inputs[1], &dx = call.outputs[0];
  return for_each_row<3>(along, {&dy, &y, &dx}, [&](const auto& offsets, int64_t size, const auto& steps) {
    double dot = 0;
    for (int64_t i = 0; i < size; ++i) dot += get(dy, offsets[0] + i * steps[0]) * get(y, offsets[1] + i * steps[1]);
    for (int64_t i = 0; i < size; ++i) {
      const double p = get(y, offsets[1] + i * steps[1]);
      set(dx, offsets[2] + i * steps[2], p * (get(dy, offsets[0] + i * steps[0]) - dot));
    }
  });
}

KernelStatus log_softmax_grad(const KernelCall& call, const Axis& along) {
  const TensorRef &dy = call.inputs[0], &y = call.inputs[1], &dx = call.outputs[0];
  return for_each_row<3>(along, {&dy, &y, &dx}, [&](const auto& offsets, int64_t size, const auto& steps) {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += get(dy, offsets[0] + i * steps[0]);
    for (int64_t i = 0; i < size; ++i) {
      const double p = std::exp(get(y, offsets[1] + i * steps[1]));
      set(dx, offsets[2] + i * steps[2], get(dy, offsets[0] + i * steps[0]) - p * sum);
    }
  });
}

}  // namespace lowtide::reference
