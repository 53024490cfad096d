// What softmax_isa.cpp hands to softmax.cpp: serial loops over some rows.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/softmax.h"

namespace lowtide::cpu {

struct SoftmaxTable {
  using Rows = void (*)(const float* x, float* y, int64_t rows, int64_t cols, float scale);
  using GradRows = void (*)(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols, float scale);
  using Reduce = void (*)(const float* x, float* out, int64_t rows, int64_t cols);
  Rows softmax;
  Rows log_softmax;
  GradRows softmax_grad;
  GradRows log_softmax_grad;
  Reduce reduce[kRowReduces];
  // out[c] = sum of `rows` rows in order, row r at x + r * stride; `add` adds that sum to out.
  void (*sum_rows)(const float* x, int64_t stride, float* out, int64_t rows, int64_t cols, bool add);
  // The same over rows x + rows_at[r] * stride, r < rows.
  void (*gather_sum)(const float* x, int64_t stride, const int32_t* rows_at, int64_t rows, float* out, int64_t cols,
                     bool add);
};

LT_ISA_TABLES(SoftmaxTable, softmax_table)

}  // namespace lowtide::cpu
