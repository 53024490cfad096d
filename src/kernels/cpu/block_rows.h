// How kernels over [rows, cols] share rows among threads.
#pragma once

#include <algorithm>
#include <memory>

#include "base/parallel.h"
#include "kernels/cpu/softmax_table.h"

namespace lowtide::cpu {

// body(first_row, rows); `cost` is roughly the nanoseconds of one element, a chunk takes about 30 us.
template <class Body>
void for_row_chunks(int64_t rows, int64_t cols, double cost, Body body) {
  const double row_ns = std::max(1.0, static_cast<double>(cols) * cost);
  const int64_t grain = std::max<int64_t>(1, static_cast<int64_t>(30000 / row_ns));
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) { body(begin, end - begin); });
}

constexpr int64_t row_blocks(int64_t rows) { return (rows + kRowsPerBlock - 1) / kRowsPerBlock; }

// For gradients of per-column parameters: block_body(first_row, rows, partial) leaves the sums of one block of rows in
// partial[0, width); afterwards out[0, width) is the sum of the partials in block order, whatever the threads.
template <class Body>
void sum_over_row_blocks(int64_t rows, int64_t width, double block_ns, float* out, Body block_body) {
  const int64_t blocks = row_blocks(rows);
  const auto partials = std::make_unique_for_overwrite<float[]>(blocks * width);
  parallel_for(blocks, std::max<int64_t>(1, static_cast<int64_t>(30000 / block_ns)), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kRowsPerBlock;
      block_body(first, std::min(kRowsPerBlock, rows - first), partials.get() + b * width);
    }
  });
  const int64_t grain = std::max<int64_t>(64, (int64_t{1} << 17) / std::max<int64_t>(blocks, 1));
  parallel_for(width, grain, [&](int64_t begin, int64_t end) {
    softmax_table().sum_rows(partials.get() + begin, width, out + begin, blocks, end - begin, false);
  });
}

}  // namespace lowtide::cpu
