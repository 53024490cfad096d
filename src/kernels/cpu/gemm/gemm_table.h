// What gemm_isa.cpp hands to packed_gemm.cpp: one block of C, serially.
#pragma once

#include "kernels/cpu/gemm/blocks.h"
#include "kernels/cpu/gemm/packed_gemm.h"
#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

struct RoundedSums {
  bool brain;
  float alpha, beta;  // beta 0: c is not read
  const uint16_t* bias;
  uint16_t* c;
  int64_t c_stride;
  float* float_c = nullptr;  // in place of c, widened again; then beta is 0
};

struct GemmTable {
  BlockLimits limits;
  int64_t (*scratch)(const Gemm& call, int64_t rows, int64_t cols);  // floats for one block of at most that
  // C[row, row + rows) x [col, col + cols) of one product (batch offsets already applied).
  void (*block)(const Gemm& call, int64_t row, int64_t rows, int64_t col, int64_t cols, float* scratch);
  // Rows of c = alpha sums + beta c, or + bias (null: none), each rounded to bf16 (brain) or f16.
  void (*round)(const float* sums, int64_t sums_stride, const RoundedSums& to, int64_t rows, int64_t cols);
};

LT_ISA_TABLES(GemmTable, gemm_table)

}  // namespace lowtide::cpu
