// Sums over the rows of f32, bf16 and f16 matrices, in f32.
#pragma once

#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/float_runs.h"

namespace lowtide::cpu {

constexpr int64_t kSumPanel = 256;  // columns whose block sums stay in L1

// Dense rows of `cols` numbers.
struct SummedRows {
  const TensorRef& x;
  int64_t offset, rows, cols;

  // out[0, width) = or += the sum of n <= kRowsPerBlock rows from `row` on, columns from c on.
  void sum(int64_t row, int64_t n, int64_t c, int64_t width, float* out, bool add) const {
    const auto sum_rows = reductions_table().sum_rows[stored_as(x.dtype)];
    sum_rows(address(x, offset + row * cols + c), cols, out, n, width, add);
  }

  // out[c] += sum over rows, by blocks of kRowsPerBlock.
  void add_columns(float* out) const {
    const int64_t panels = (cols + kSumPanel - 1) / kSumPanel;
    for_row_chunks(panels, kSumPanel * rows, 0.2, [&](int64_t first, int64_t count) {
      for (int64_t p = first; p < first + count; ++p) {
        const int64_t c = p * kSumPanel, width = std::min(kSumPanel, cols - c);
        for (int64_t r = 0; r < rows; r += kRowsPerBlock)
          sum(r, std::min(kRowsPerBlock, rows - r), c, width, out + c, true);
      }
    });
  }
};

// Too few columns to share: threads share row blocks.
constexpr bool is_narrow(int64_t cols) { return cols < 4 * kSumPanel; }

constexpr int64_t sum_columns_scratch_bytes(int64_t rows, int64_t cols) {
  return is_narrow(cols) ? row_blocks(rows) * cols * static_cast<int64_t>(sizeof(float)) : 0;
}

// out[c] = sum over rows, by blocks of kRowsPerBlock.
inline void sum_columns(const SummedRows& x, float* out, void* scratch) {
  if (is_narrow(x.cols)) {
    float* partials = static_cast<float*>(scratch);
    for_row_blocks(x.rows, x.cols, 0.2, partials,
                   [&](int64_t r, int64_t n, float* partial) { x.sum(r, n, 0, x.cols, partial, false); });
    add_row_blocks(partials, x.rows, x.cols, out, x.cols);
    return;
  }
  // Starting from 0 as the sum of partials does: -0 becomes 0 there.
  std::fill(out, out + x.cols, 0.0f);
  x.add_columns(out);
}

}  // namespace lowtide::cpu
