// What double_rows_isa.cpp hands to softmax: serial loops over one row, or plane, of doubles. Numbers of a row are
// summed in eight lanes, the i-th in lane i % 8, so that all instruction sets have the same bits. Results may lie in
// the place of an operand.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

struct DoubleRowsTable {
  using Row = void (*)(const double* x, double* y, int64_t n);
  using GradRow = void (*)(const double* dy, const double* y, double* dx, int64_t n);
  Row softmax, log_softmax;
  GradRow softmax_grad, log_softmax_grad;
  double (*log_sum_exp)(const double* x, int64_t n);
  // y = factor exp(x - shift)
  void (*scaled_exp)(const double* x, double* y, int64_t n, double shift, double factor);
  // Of n columns of `size` numbers, `step` apart.
  using Plane = void (*)(const double* x, double* y, int64_t step, int64_t size, int64_t n);
  using GradPlane = void (*)(const double* dy, const double* y, double* dx, int64_t step, int64_t size, int64_t n);
  Plane plane_softmax, plane_log_softmax;
  GradPlane plane_softmax_grad, plane_log_softmax_grad;
};

LT_ISA_TABLES(DoubleRowsTable, double_rows_table)

}  // namespace lowtide::cpu
