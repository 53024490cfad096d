// What batch_norm_isa.cpp hands to batch_norm.cpp: serial loops over one run of one channel (plane) or over rows of all
// channels (rows).
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

// Of images whose numbers are all stored alike.
struct BatchNormLoops {
  // Mean, and sum of squared deviations from it.
  void (*plane_moments)(const void* x, int64_t n, float* mean, float* squares);
  void (*row_moments)(const void* x, int64_t rows, int64_t channels, float* mean, float* squares);
  // y = a x + b
  void (*plane_affine)(const void* x, void* y, int64_t n, float a, float b);
  void (*row_affine)(const void* x, void* y, int64_t rows, int64_t channels, const float* a, const float* b);
  // sum(dy) and sum(dy (x - mean))
  void (*plane_sums)(const void* dy, const void* x, int64_t n, float mean, float* sum, float* dot);
  void (*row_sums)(const void* dy, const void* x, int64_t rows, int64_t channels, const float* mean, float* sum,
                   float* dot);
  // dx = a dy + b (x - mean) + c
  void (*plane_grad)(const void* dy, const void* x, void* dx, int64_t n, float mean, float a, float b, float c);
  void (*row_grad)(const void* dy, const void* x, void* dx, int64_t rows, int64_t channels, const float* mean,
                   const float* a, const float* b, const float* c);
};

struct BatchNormTable {
  BatchNormLoops f32, bf16, f16;
};

LT_ISA_TABLES(BatchNormTable, batch_norm_table)

}  // namespace lowtide::cpu
