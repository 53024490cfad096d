// What statistics_isa.cpp hands out: one loop for each dtype, over dense elements.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

// Of a part of a tensor. `squares` is the sum of squared distances from the mean.
struct PartStatistics {
  int64_t numel = 0, nan = 0, inf = 0, negative = 0, zero = 0;
  double min = 0, max = 0, mean = 0, squares = 0;
};

struct StatisticsTable {
  // Of 1 to kStatisticsBlock elements; the sums run in vectors' lanes, so sets differ in the last bits.
  using Block = void (*)(const void* x, int64_t n, PartStatistics* result);
  Block block[10];  // by DType
};

constexpr int64_t kStatisticsBlock = 4096;

LT_ISA_TABLES(StatisticsTable, statistics_table)

}  // namespace lowtide::cpu
