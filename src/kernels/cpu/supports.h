// Reasons to refuse that kernels share.
#pragma once

#include "kernels/strided.h"

namespace lowtide::cpu {

inline const char* supports_f32(const KernelQuery& query) {
  for (const OperandInfo& operand : query.inputs) {
    if (operand.present && operand.dtype != DType::kF32) return "not f32";
  }
  return nullptr;
}

// One dtype, which is f32 or stored in half the bytes.
inline const char* supports_float(const KernelQuery& query) {
  const DType dtype = query.inputs[0].dtype;
  if (dtype != DType::kF32 && !is_half(dtype)) return "neither f32, bf16 nor f16";
  for (const OperandInfo& operand : query.inputs) {
    if (operand.present && operand.dtype != dtype) return "mixed dtypes";
  }
  return nullptr;
}

}  // namespace lowtide::cpu
