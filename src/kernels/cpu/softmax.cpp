#include "kernels/cpu/softmax.h"

#include "kernels/cpu/block_rows.h"

namespace lowtide::cpu {

void softmax(const float* x, float* y, int64_t rows, int64_t cols, float scale) {
  for_row_chunks(rows, cols, 0.8,
                 [&](int64_t r, int64_t n) { softmax_table().softmax(x + r * cols, y + r * cols, n, cols, scale); });
}

void log_softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  for_row_chunks(rows, cols, 0.8,
                 [&](int64_t r, int64_t n) { softmax_table().log_softmax(x + r * cols, y + r * cols, n, cols, 1); });
}

void softmax_grad(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols, float scale) {
  for_row_chunks(rows, cols, 0.4, [&](int64_t r, int64_t n) {
    softmax_table().softmax_grad(y + r * cols, dy + r * cols, dx + r * cols, n, cols, scale);
  });
}

void log_softmax_grad(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols) {
  for_row_chunks(rows, cols, 0.8, [&](int64_t r, int64_t n) {
    softmax_table().log_softmax_grad(y + r * cols, dy + r * cols, dx + r * cols, n, cols, 1);
  });
}

void reduce_rows(RowReduce op, const float* x, float* out, int64_t rows, int64_t cols) {
  for_row_chunks(rows, cols, 0.2, [&](int64_t r, int64_t n) {
    softmax_table().reduce[static_cast<int>(op)](x + r * cols, out + r, n, cols);
  });
}

void sum_columns(const float* x, float* out, int64_t rows, int64_t cols) {
  const auto sum_rows = softmax_table().sum_rows;
  constexpr int64_t kPanel = 256;  // columns whose block sums stay in L1
  if (cols < 4 * kPanel) {
    sum_over_row_blocks(
        rows, cols, kRowsPerBlock * static_cast<double>(cols) * 0.2, out,
        [&](int64_t r, int64_t n, float* partial) { sum_rows(x + r * cols, cols, partial, n, cols, false); });
    return;
  }
  const int64_t panels = (cols + kPanel - 1) / kPanel;
  for_row_chunks(panels, kPanel * rows, 0.2, [&](int64_t first, int64_t count) {
    for (int64_t p = first; p < first + count; ++p) {
      const int64_t c = p * kPanel, width = std::min(kPanel, cols - c);
      // Starting from 0 as the sum of partials does: -0 becomes 0 there.
      std::fill(out + c, out + c + width, 0.0f);
      for (int64_t r = 0; r < rows; r += kRowsPerBlock) {
        sum_rows(x + r * cols + c, cols, out + c, std::min(kRowsPerBlock, rows - r), width, true);
      }
    }
  });
}

}  // namespace lowtide::cpu
