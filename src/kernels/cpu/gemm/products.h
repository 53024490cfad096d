// MatMul, FusedMatMul and Gemm as products that an engine takes: transposes and leading strides go in as flags, other
// layouts, bf16 and f16 through scratch.
#pragma once

#include <algorithm>

#include "kernels/strided.h"

namespace lowtide::cpu {

// The last two dims of an operand: plain is row-major with leading stride `lead`, flipped its transpose.
struct Matrix {
  int64_t rows, cols, row_stride, col_stride;

  bool plain() const {
    return (col_stride == 1 || cols == 1) && (row_stride >= std::max<int64_t>(cols, 1) || rows == 1);
  }
  bool flipped() const {
    return (row_stride == 1 || rows == 1) && (col_stride >= std::max<int64_t>(rows, 1) || cols == 1);
  }
  bool direct() const { return plain() || flipped(); }
  int64_t lead() const {
    const bool is_plain = plain();
    const int64_t least = std::max<int64_t>(is_plain ? cols : rows, 1), lines = is_plain ? rows : cols;
    return lines == 1 ? least : is_plain ? row_stride : col_stride;
  }
};
Matrix matrix_of(const TensorRef& tensor, bool transposed);

// What the op asks for; c may be null.
struct Request {
  bool trans_a = false, trans_b = false;
  double alpha = 1, beta = 0;
  const TensorRef* c = nullptr;
};

Request request_of(const KernelCall& call);

// A product whose operands all fit: every batch of the grid (offsets of a, b, y) is alpha l r + beta o.
struct Products {
  TensorRef a, b, y;
  Matrix l, r, o;
  Grid<3> batches;
};

// The operands as an engine takes them; `bytes` of scratch go to stand-ins. Fills them if `fill`.
Products products_for(const KernelCall& call, const Request& request, bool fill, int64_t& bytes);

bool nothing_to_multiply(const KernelCall& call, const Request& request);
// The op's reference kernel.
KernelStatus reference_of(const KernelCall& call);

}  // namespace lowtide::cpu
