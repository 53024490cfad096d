// One name for the packed products of f32 and of 16 bits.
#pragma once

#include "base/parallel.h"
#include "kernels/cpu/gemm/half_gemm.h"

namespace lowtide::cpu {

inline void multiply(const Gemm& gemm, void* scratch, int64_t bytes) { packed_gemm(gemm, scratch, bytes); }
inline void multiply(const HalfGemm& gemm, void* scratch, int64_t bytes) { half_gemm(gemm, scratch, bytes); }
inline int64_t multiply_scratch(const Gemm& gemm) { return packed_gemm_scratch_bytes(gemm, parallel_threads()); }
inline int64_t least_multiply_scratch(const Gemm& gemm) {
  return least_packed_gemm_scratch_bytes(gemm, parallel_threads());
}
inline int64_t multiply_scratch(const HalfGemm& gemm) { return half_gemm_scratch_bytes(gemm, parallel_threads()); }

}  // namespace lowtide::cpu
