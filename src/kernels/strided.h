// What kernels on strided tensors share: operands that may be absent, runs along an output's memory.
#pragma once

#include "kernels/walk.h"

namespace lowtide {

inline constexpr TensorRef kAbsent{};

inline const TensorRef* input(const KernelCall& call, size_t index) {
  return index < call.inputs.size() && call.inputs[index].present ? &call.inputs[index] : nullptr;
}
inline const TensorRef* output(const KernelCall& call, size_t index) {
  return index < call.outputs.size() && call.outputs[index].present ? &call.outputs[index] : nullptr;
}

// The same, with an absent tensor for what is not there: of rank 0, broadcast by strides of 0.
inline const TensorRef& input_or_absent(const KernelCall& call, size_t index) {
  const TensorRef* tensor = input(call, index);
  return tensor != nullptr ? *tensor : kAbsent;
}
inline const TensorRef& output_or_absent(const KernelCall& call, size_t index) {
  const TensorRef* tensor = output(call, index);
  return tensor != nullptr ? *tensor : kAbsent;
}

// The first N inputs and the first output, in the order of its memory.
template <size_t N>
struct OperandRuns : Runs<N + 1> {
  OperandRuns(const BoundCall& call, int64_t longest) : Runs<N + 1>(order(call), longest) {}

 private:
  static Grid<N + 1> order(const BoundCall& call) {
    std::array<const TensorRef*, N> inputs;
    for (size_t i = 0; i < N; ++i) inputs[i] = &input_or_absent(call, i);
    return memory_order<N>(call, call.outputs[0], inputs);
  }
};

}  // namespace lowtide
