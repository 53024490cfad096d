// Packed bf16 and f16 matrix products, row-major:  C = alpha op(A) op(B) + beta C, or + bias.
// Sums are f32; alpha, beta C and the bias are applied to the whole sum, which is rounded once. The sum over k is what
// the instruction set makes of it: bf16 on avx512_bf16 and amx is multiplied as it is (denormals count as zeros there),
// in chains over the whole of k; all else is widened and summed as packed_gemm does. No thread count and no cut of the
// rows or columns changes a bit.
#pragma once

#include "base/dtype.h"
#include "kernels/cpu/gemm/packed_gemm.h"

namespace lowtide::cpu {

struct HalfGemm : GemmOf<uint16_t> {
  DType dtype = DType::kBF16;  // or kF16
  // In place of C, the sums themselves, dense: sums = the product or, with `adds`, sums += it. A product whose k is cut
  // at multiples of kGemmDepth and added up so has the bits of the whole one. Needs alpha 1, beta 0, no bias, one
  // batch.
  float* sums = nullptr;
  bool adds = false;
  // Stored in f32, in place of a, b and c and with their strides: what is read is rounded to `dtype`, and what is
  // written was. beta must be 0 where float_c is given.
  const float *float_a = nullptr, *float_b = nullptr;
  float* float_c = nullptr;
};

// scratch is 64-byte aligned; scratch_bytes / half_gemm_scratch_bytes(call, 1) threads work at most.
void half_gemm(const HalfGemm& call, void* scratch, int64_t scratch_bytes);
int64_t half_gemm_scratch_bytes(const HalfGemm& call, int threads);

}  // namespace lowtide::cpu
