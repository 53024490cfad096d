// Reasons to refuse that kernels share.
#pragma once

#include "kernels/strided.h"

namespace lowtide::cpu {

inline const char* supports_f32(const KernelQuery& query) {
  if (query.attrs->has("computes") && query.attrs->t("computes") != DType::kF32) return "not f32";
  for (const OperandInfo& operand : query.inputs) {
    if (operand.present && operand.dtype != DType::kF32) return "not f32";
  }
  for (const OperandInfo& operand : query.outputs) {
    if (operand.present && is_half(operand.dtype)) return "not f32";
  }
  return nullptr;
}

// Whether a kernel that computes in `computes` reads an operand of this dtype run by run, widened or rounded.
inline bool is_readable_as(DType computes, DType stored) {
  return stored == computes || (computes == DType::kF32 ? is_half(stored) : stored == DType::kF32);
}

// One dtype, which is f32 or stored in half the bytes, and what is converted to it as it is read.
inline const char* supports_float(const KernelQuery& query) {
  const DType dtype = computed_dtype(*query.attrs, query.inputs[0].dtype);
  if (dtype != DType::kF32 && !is_half(dtype)) return "neither f32, bf16 nor f16";
  const bool converts = query.attrs->has("computes");
  for (const OperandInfo& operand : query.inputs) {
    if (!operand.present || operand.dtype == dtype) continue;
    if (!converts || !is_readable_as(dtype, operand.dtype)) return "mixed dtypes";
  }
  return nullptr;
}

}  // namespace lowtide::cpu
