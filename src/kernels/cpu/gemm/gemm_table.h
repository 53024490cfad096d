// What gemm_isa.cpp hands to packed_gemm.cpp: one block of C, serially.
#pragma once

#include "kernels/cpu/gemm/packed_gemm.h"
#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

struct GemmTable {
  int64_t packed_rows;  // of A at a time: whole register tiles that half fill L2. A block may have more rows.
  int64_t block_cols;   // at most
  int64_t (*scratch)(const Gemm& call);  // floats for one block
  // C[row, row + rows) x [col, col + cols) of one product (batch offsets already applied).
  void (*block)(const Gemm& call, int64_t row, int64_t rows, int64_t col, int64_t cols, float* scratch);
};

LT_ISA_TABLES(GemmTable, gemm_table)

}  // namespace lowtide::cpu
