// What copy_isa.cpp hands to copy.cpp, and to whoever widens halves: serial loops. To bool by x != 0, to bf16 and f16
// to nearest even, as in PyTorch.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

struct CopyTable {
  // dst[j * dst_stride + i] = src[i * src_stride + j] for i < rows, j < cols; four-byte elements.
  void (*transpose)(const float* src, int64_t src_stride, float* dst, int64_t dst_stride, int64_t rows, int64_t cols);
  void (*bf16_to_f32)(const void* src, void* dst, int64_t n);
  void (*f16_to_f32)(const void* src, void* dst, int64_t n);
  void (*f64_to_f32)(const void* src, void* dst, int64_t n);
  void (*i64_to_f32)(const void* src, void* dst, int64_t n);
  void (*i32_to_f32)(const void* src, void* dst, int64_t n);
  void (*bool_to_f32)(const void* src, void* dst, int64_t n);
  void (*f32_to_bf16)(const void* src, void* dst, int64_t n);
  void (*f32_to_f16)(const void* src, void* dst, int64_t n);
  void (*f32_to_f64)(const void* src, void* dst, int64_t n);
  void (*f32_to_bool)(const void* src, void* dst, int64_t n);
};

LT_ISA_TABLES(CopyTable, copy_table)

}  // namespace lowtide::cpu
