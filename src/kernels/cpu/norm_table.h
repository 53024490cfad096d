// What norm_isa.cpp hands to norm.cpp: serial loops over some rows.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/norm.h"

namespace lowtide::cpu {

struct NormTable {
  void (*layer_norm)(const float* x, const float* gamma, const float* beta, float* y, float* mean, float* rstd,
                     int64_t rows, int64_t cols, float eps);
  // dgamma and dbeta are set to the sums over these rows. A null mean means RMS norm.
  void (*norm_grad)(const float* dy, const float* x, const float* gamma, const float* mean, const float* rstd,
                    float* dx, float* dgamma, float* dbeta, int64_t rows, int64_t cols);
  void (*rms_norm)(const float* x, const float* gamma, float* y, float* rstd, int64_t rows, int64_t cols, float eps);
};

LT_ISA_TABLES(NormTable, norm_table)

}  // namespace lowtide::cpu
