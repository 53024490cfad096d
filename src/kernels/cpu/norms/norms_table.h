// What norms_isa.cpp hands to norms.cpp: serial loops over some rows.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

struct NormsTable {
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float* y, float* mean, float* inv_std,
                     int64_t rows, int64_t cols, float epsilon);
  // The sums over these rows are added to dweight and dbias. A null mean means RMS norm.
  void (*norm_grad)(const float* dy, const float* x, const float* weight, const float* mean, const float* inv_std,
                    float* dx, float* dweight, float* dbias, int64_t rows, int64_t cols);
  void (*rms_norm)(const float* x, const float* weight, float* y, float* inv_std, int64_t rows, int64_t cols,
                   float epsilon);
};

LT_ISA_TABLES(NormsTable, norms_table)

}  // namespace lowtide::cpu
