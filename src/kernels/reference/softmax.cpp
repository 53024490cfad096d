#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

// body(offsets, size, strides along the axis) per row.
template <class Rows, class Body>
static KernelStatus for_each_row(const Rows& rows, Body body) {
  rows.for_each(1024 / std::max<int64_t>(rows.size, 1),
                [&](const auto& offsets) { body(offsets, rows.size, rows.steps); });
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

KernelStatus softmax(const KernelCall& call, const UnaryRows& rows) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  return for_each_row(rows, [&](const auto& offsets, int64_t size, const auto& steps) {
    const RowScale scale = scale_of(x, offsets[0], steps[0], size);
    for (int64_t i = 0; i < size; ++i) {
      set(y, offsets[1] + i * steps[1], std::exp(get(x, offsets[0] + i * steps[0]) - scale.largest) / scale.sum);
    }
  });
}

KernelStatus log_softmax(const KernelCall& call, const UnaryRows& rows) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  return for_each_row(rows, [&](const auto& offsets, int64_t size, const auto& steps) {
    const RowScale scale = scale_of(x, offsets[0], steps[0], size);
    const double log_sum = std::log(scale.sum);
    for (int64_t i = 0; i < size; ++i) {
      set(y, offsets[1] + i * steps[1], get(x, offsets[0] + i * steps[0]) - scale.largest - log_sum);
    }
  });
}

KernelStatus softmax_grad(const KernelCall& call, const BinaryRows& rows) {
  const TensorRef &dy = call.inputs[0], &y = call.inputs[1], &dx = call.outputs[0];
  return for_each_row(rows, [&](const auto& offsets, int64_t size, const auto& steps) {
    double dot = 0;
    for (int64_t i = 0; i < size; ++i) dot += get(dy, offsets[0] + i * steps[0]) * get(y, offsets[1] + i * steps[1]);
    for (int64_t i = 0; i < size; ++i) {
      const double p = get(y, offsets[1] + i * steps[1]);
      set(dx, offsets[2] + i * steps[2], p * (get(dy, offsets[0] + i * steps[0]) - dot));
    }
  });
}

KernelStatus log_softmax_grad(const KernelCall& call, const BinaryRows& rows) {
  const TensorRef &dy = call.inputs[0], &y = call.inputs[1], &dx = call.outputs[0];
  return for_each_row(rows, [&](const auto& offsets, int64_t size, const auto& steps) {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += get(dy, offsets[0] + i * steps[0]);
    for (int64_t i = 0; i < size; ++i) {
      const double p = std::exp(get(y, offsets[1] + i * steps[1]));
      set(dx, offsets[2] + i * steps[2], get(dy, offsets[0] + i * steps[0]) - p * sum);
    }
  });
}

}  // namespace lowtide::reference
