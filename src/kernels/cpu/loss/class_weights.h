// Weights of classes as floats, at the end of a kernel's scratch where they are stored otherwise.
#pragma once

#include "kernels/cpu/dense.h"
#include "kernels/cpu/float_runs.h"
#include "kernels/strided.h"

namespace lowtide::cpu {

// Room for input `at`.
inline int64_t class_weights_floats(const KernelCall& call, size_t at) {
  const TensorRef* weights = input(call, at);
  return weights == nullptr || weights->dtype == DType::kF32 ? 0 : weights->numel();
}
inline int64_t class_weights_bytes(const KernelCall& call, size_t at) {
  return class_weights_floats(call, at) * kFloatBytes;
}

// Null: there are none.
inline const float* class_weights(const KernelCall& call, size_t at, int64_t classes) {
  const TensorRef* weights = input(call, at);
  if (weights == nullptr) return nullptr;
  if (weights->dtype == DType::kF32) return weights->as<float>();
  float* room = reinterpret_cast<float*>(static_cast<char*>(call.scratch) + call.scratch_bytes) - classes;
  return read(*weights, 0, 1, classes, room);
}

}  // namespace lowtide::cpu
