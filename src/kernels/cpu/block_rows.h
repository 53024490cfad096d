// How kernels over [rows, cols] share rows among threads.
#pragma once

#include <algorithm>

#include "base/parallel.h"
#include "kernels/cpu/reductions/reductions_table.h"

namespace lowtide::cpu {

// body(first_row, rows); `cost` is roughly the nanoseconds of one element, a chunk takes about 30 us.
template <class Body>
void for_row_chunks(int64_t rows, int64_t cols, double cost, Body body) {
  const double row_ns = std::max(1.0, static_cast<double>(cols) * cost);
  const int64_t grain = std::max<int64_t>(1, static_cast<int64_t>(30000 / row_ns));
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) { body(begin, end - begin); });
}

// Sums over rows go by blocks of this many rows, each summed in order, then the blocks in order.
constexpr int64_t kRowsPerBlock = 32;
constexpr int64_t row_blocks(int64_t rows) { return (rows + kRowsPerBlock - 1) / kRowsPerBlock; }

// For sums over rows: block_body(first_row, rows, partial) leaves the sums of one block of rows in partial[0, width).
// partials has row_blocks(rows) * width floats.
template <class Body>
void for_row_blocks(int64_t rows, int64_t width, double cost, float* partials, Body block_body) {
  const double block_ns = std::max(1.0, kRowsPerBlock * static_cast<double>(width) * cost);
  const int64_t grain = std::max<int64_t>(1, static_cast<int64_t>(30000 / block_ns));
  parallel_for(row_blocks(rows), grain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kRowsPerBlock;
      block_body(first, std::min(kRowsPerBlock, rows - first), partials + b * width);
    }
  });
}

// out[c] = the sum of partials[b * width + c] in block order, whatever the threads.
inline void add_row_blocks(const float* partials, int64_t rows, int64_t width, float* out, int64_t cols) {
  const int64_t blocks = row_blocks(rows);
  const int64_t grain = std::max<int64_t>(64, (int64_t{1} << 17) / std::max<int64_t>(blocks, 1));
  parallel_for(cols, grain, [&](int64_t begin, int64_t end) {
    reductions_table().sum_rows[kStoredF32](partials + begin, width, out + begin, blocks, end - begin, false);
  });
}

}  // namespace lowtide::cpu
