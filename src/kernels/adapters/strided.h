// Elementwise work of adapters on strided tensors: walks along the output's memory, in runs, on all threads.
#pragma once

#include "kernels/walk.h"

namespace lowtide::adapters {

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

// to = from, broadcast and converted: any dtypes, any strides.
void copy_tensor(const TensorRef& from, const TensorRef& to);

inline const TensorRef* input(const KernelCall& call, size_t index) {
  return index < call.inputs.size() && call.inputs[index].present ? &call.inputs[index] : nullptr;
}
inline const TensorRef* output(const KernelCall& call, size_t index) {
  return index < call.outputs.size() && call.outputs[index].present ? &call.outputs[index] : nullptr;
}

// Stored in half the bytes, computed in f32.
inline bool is_half(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

// Why a kernel refuses, for `supports`.
inline const char* want_dtype(const KernelQuery& query, DType dtype) {
  for (const OperandInfo& operand : query.inputs) {
    if (operand.present && operand.dtype != dtype) return "takes one dtype only";
  }
  return nullptr;
}

}  // namespace lowtide::adapters
