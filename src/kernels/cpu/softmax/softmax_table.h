// What softmax_isa.cpp hands to the kernels: serial loops over some rows, or over n rows side by side, whose numbers
// are `stride` apart. Outputs may be the inputs themselves.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

struct SoftmaxTable {
  using Rows = void (*)(const float* x, float* y, int64_t rows, int64_t cols);
  using GradRows = void (*)(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols);
  Rows softmax;
  Rows log_softmax;
  GradRows softmax_grad;
  GradRows log_softmax_grad;

  using Planes = void (*)(const float* x, float* y, int64_t stride, int64_t size, int64_t n);
  using GradPlanes = void (*)(const float* y, const float* dy, float* dx, int64_t stride, int64_t size, int64_t n);
  Planes plane_softmax;
  Planes plane_log_softmax;
  GradPlanes plane_softmax_grad;
  GradPlanes plane_log_softmax_grad;
};

LT_ISA_TABLES(SoftmaxTable, softmax_table)

}  // namespace lowtide::cpu
