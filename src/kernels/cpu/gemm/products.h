// MatMul, FusedMatMul and Gemm as products that an engine takes: transposes and leading strides go in as flags, other
// layouts through scratch. All of it but the addresses is decided when a kernel is prepared.
#pragma once

#include <algorithm>

#include "kernels/cpu/copy/copy.h"
#include "kernels/reference/reference.h"
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

// Products whose operands all fit: every batch of the grid (offsets of a, b, y) is alpha l r + beta o.
struct Products {
  explicit Products(const BoundCall& call);

  double alpha = 1, beta = 0;  // beta is 0 where there is no c
  bool is_empty = false;       // no elements, or sums of nothing: the reference kernel knows what to do
  bool is_double = false;
  reference::Product asked;  // for the reference kernel
  // Bytes into the scratch where a dense stand-in of a, b, y lies, or -1: the operand itself. They take `bytes` of it.
  int64_t stand_ins[3] = {-1, -1, -1};
  int64_t bytes = 0;
  TensorCopy copies[3];    // a and b to their stand-ins, y back from its own
  TensorCopy copy_addend;  // c to where y is computed
  Matrix l, r, o;
  Grid<3> batches;
};

// Where the engine finds a and b and leaves y.
struct ProductOperands {
  void *a, *b, *y;
};
// Fills the stand-ins of a and b.
ProductOperands operands_of(const KernelCall& call, const Products& products);
// From y's stand-in to y.
void hand_back(const KernelCall& call, const Products& products, const ProductOperands& operands);

}  // namespace lowtide::cpu
