// What pointwise_isa.cpp hands to pointwise.cpp: serial loops over one row.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/pointwise.h"

namespace lowtide::cpu {

// How the two operands of a row advance.
enum class Advance : uint8_t { kBoth, kLeft, kRight };

struct PointwiseTable {
  using Unary = void (*)(const float* x, float* y, int64_t n, float a, float b);
  using UnaryGrad = void (*)(const float* saved, const float* dy, float* dx, int64_t n, float a, float b);
  using Binary = void (*)(const float* a, const float* b, float* y, int64_t n);
  using Compare = void (*)(const float* a, const float* b, uint8_t* y, int64_t n);
  using Select = void (*)(const uint8_t* condition, const float* a, const float* b, float* y, int64_t n);
  Unary unary[kUnaryOps];
  UnaryGrad unary_grad[kUnaryGradOps];
  Binary binary[kBinaryOps][3];
  Compare compare[kCompareOps][3];
  Select select[4];  // by (a advances) + 2 (b advances)
};

LT_ISA_TABLES(PointwiseTable, pointwise_table)

}  // namespace lowtide::cpu
