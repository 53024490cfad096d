// What loss_isa.cpp hands to loss.cpp: one row.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

struct LossTable {
  // Returns log(sum(exp(x))); *mean = mean(x) unless null.
  float (*log_sum_exp)(const float* x, int64_t n, float* mean);
  // dx = factor exp(x - lse) - shift
  void (*grad)(const float* x, float* dx, int64_t n, float lse, float factor, float shift);
};

LT_ISA_TABLES(LossTable, loss_table)

}  // namespace lowtide::cpu
