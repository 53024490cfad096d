// What norms_isa.cpp hands to norms.cpp: serial loops over some rows.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/stored.h"

namespace lowtide::cpu {

using LayerNormRows = void (*)(const void* x, const float* weight, const float* bias, void* y, float* mean,
                               float* inv_std, int64_t rows, int64_t cols, float epsilon);
using RmsNormRows = void (*)(const void* x, const float* weight, void* y, float* inv_std, int64_t rows, int64_t cols,
                             float epsilon);
// The sums over these rows are added to dweight and dbias. A null mean means RMS norm.
using NormGradRows = void (*)(const void* dy, const void* x, const float* weight, const float* mean,
                              const float* inv_std, void* dx, float* dweight, float* dbias, int64_t rows, int64_t cols);

// By how x and y are stored, and dy, x and dx.
struct NormsTable {
  LayerNormRows layer_norm[kStored][kStored];
  RmsNormRows rms_norm[kStored][kStored];
  NormGradRows norm_grad[kStored][kStored][kStored];
};

LT_ISA_TABLES(NormsTable, norms_table)

}  // namespace lowtide::cpu
