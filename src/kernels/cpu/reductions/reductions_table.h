// What reductions_isa.cpp hands to reductions.cpp, and to whoever sums rows: serial loops.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/stored.h"

namespace lowtide::cpu {

enum class RowReduce : uint8_t { kSum, kMean, kMax, kMin, kProd, kL2, kLogSumExp };
constexpr int kRowReduces = static_cast<int>(RowReduce::kLogSumExp) + 1;

struct ReductionsTable {
  // out[r] over row r; maximum, minimum and kLogSumExp hand on NaN. cols >= 1 for those.
  void (*rows[kRowReduces])(const float* x, float* out, int64_t rows, int64_t cols);
  // out[c] = sum of `rows` rows in order, row r at x + r * stride, by how x is stored; `add` adds that sum to out.
  void (*sum_rows[kStored])(const void* x, int64_t stride, float* out, int64_t rows, int64_t cols, bool add);
  // The same over rows x + rows_at[r] * stride, r < rows.
  void (*gather_sum)(const float* x, int64_t stride, const int32_t* rows_at, int64_t rows, float* out, int64_t cols,
                     bool add);
};

LT_ISA_TABLES(ReductionsTable, reductions_table)

}  // namespace lowtide::cpu
