// Packed f32 matrix products, row-major:  C = alpha op(A) op(B) + beta C, or + bias.
// The sum over k goes by blocks of kGemmDepth: a chain of fma in ascending order within a block, then the blocks' sums
// added in order to beta C (or the bias, or nothing); alpha is multiplied into A's elements. No thread count changes a
// bit.
#pragma once

#include <cstdint>

namespace lowtide::cpu {

constexpr int64_t kGemmDepth = 256;

template <class Number>
struct GemmOf {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;  // A is stored [k, m] instead of [m, k]
  bool transpose_b = false;  // B is stored [n, k] instead of [k, n]
  float alpha = 1;
  float beta = 0;  // 0: C is not read
  const Number* a = nullptr;
  int64_t a_stride = 0;  // numbers from one stored row to the next
  const Number* b = nullptr;
  int64_t b_stride = 0;
  Number* c = nullptr;
  int64_t c_stride = 0;
  // Added to every row of C (length n) in place of beta C; null: none. Needs beta = 0.
  const Number* bias = nullptr;
  // `batches` independent products; batch strides in numbers, 0 repeats an operand.
  int64_t batches = 1;
  int64_t a_batch = 0, b_batch = 0, c_batch = 0;
};
using Gemm = GemmOf<float>;

// scratch is 64-byte aligned. With less than packed_gemm_scratch_bytes, blocks are narrower; with less than
// least_packed_gemm_scratch_bytes, fewer threads work, one at least.
void packed_gemm(const Gemm& call, void* scratch, int64_t scratch_bytes);
// What the fastest blocks take.
int64_t packed_gemm_scratch_bytes(const Gemm& call, int threads);
// Grows with m, n and k.
int64_t least_packed_gemm_scratch_bytes(const Gemm& call, int threads);

}  // namespace lowtide::cpu
