// Row-major operands of f32 kernels, as pointers and rows.
#pragma once

#include "kernels/strided.h"

namespace lowtide::cpu {

inline int64_t product_of_sizes(const TensorRef& tensor, int64_t begin, int64_t end) {
  int64_t product = 1;
  for (int64_t i = begin; i < end; ++i) product *= tensor.sizes[i];
  return product;
}

struct Rows {
  int64_t rows, cols;
};
// [0, axis) and [axis, rank).
inline Rows rows_at(const TensorRef& x, int64_t axis) {
  return {product_of_sizes(x, 0, axis), product_of_sizes(x, axis, x.rank)};
}

// Where an operand lies; null if it is absent.
inline const float* input_floats(const KernelCall& call, size_t index) {
  const TensorRef* tensor = input(call, index);
  return tensor ? tensor->as<float>() : nullptr;
}
inline float* output_floats(const KernelCall& call, size_t index) {
  const TensorRef* tensor = output(call, index);
  return tensor ? tensor->as<float>() : nullptr;
}

// `by` elements further; null stays null.
template <class T>
T* shifted(T* p, int64_t by) {
  return p == nullptr ? nullptr : p + by;
}

constexpr int64_t kFloatBytes = sizeof(float);

// The sizes before an axis of row-major x, along it, and behind it.
struct AlongAxis {
  AlongAxis(const TensorRef& x, int64_t axis)
      : outer(product_of_sizes(x, 0, axis)), size(x.sizes[axis]), inner(product_of_sizes(x, axis + 1, x.rank)) {}
  int64_t outer, size, inner;
};

// What scratch is cut into.
constexpr int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace lowtide::cpu
