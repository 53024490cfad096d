// What loss_isa.cpp hands to the losses: one row; or n rows side by side, their classes `stride` apart.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

struct LossTable {
  // Returns log(sum(exp(x))); *mean = mean(x) unless null.
  float (*log_sum_exp)(const float* x, int64_t n, float* mean);
  // dx = factor exp(x - lse) - shift
  void (*grad)(const float* x, float* dx, int64_t n, float lse, float factor, float shift);
  void (*plane_log_sum_exp)(const float* x, int64_t stride, int64_t classes, int64_t n, float* lse);
  // Of one class: dx = factor exp(x - lse) - g shift
  void (*plane_grad)(const float* x, float* dx, int64_t n, const float* lse, const float* factor, const float* g,
                     float shift);
};

LT_ISA_TABLES(LossTable, loss_table)

}  // namespace lowtide::cpu
