// What kernels on strided tensors share: operands that may be absent, walks along an output's memory.
#pragma once

#include "kernels/walk.h"

namespace lowtide {

// All positions of y in the order of its memory. Offsets: each input (broadcast to y), then y.
template <size_t N>
Grid<N + 1> memory_order(const TensorRef& y, const std::array<const TensorRef*, N>& inputs) {
  std::array<Strides, N + 1> strides;
  for (size_t t = 0; t < N; ++t) strides[t] = broadcast_strides(*inputs[t], y);
  strides[N] = strides_of(y);
  Grid<N + 1> grid = grid_over<N + 1>(y, strides);
  grid.sort_by(N);
  grid.collapse();
  return grid;
}

inline const TensorRef* input(const KernelCall& call, size_t index) {
  return index < call.inputs.size() && call.inputs[index].present ? &call.inputs[index] : nullptr;
}
inline const TensorRef* output(const KernelCall& call, size_t index) {
  return index < call.outputs.size() && call.outputs[index].present ? &call.outputs[index] : nullptr;
}

// Stored in half the bytes, computed in f32.
inline bool is_half(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

}  // namespace lowtide
