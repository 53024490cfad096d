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

namespace {
constexpr int64_t kPanel = 256;  // columns whose block sums stay in L1
// Too few columns to share: threads share row blocks.
bool is_narrow(int64_t cols) { return cols < 4 * kPanel; }
}  // namespace

int64_t sum_columns_scratch_bytes(int64_t rows, int64_t cols) {
  return is_narrow(cols) ? row_blocks(rows) * cols * static_cast<int64_t>(sizeof(float)) : 0;
}

void sum_columns(const float* x, float* out, int64_t rows, int64_t cols, void* scratch) {
  const auto sum_rows = softmax_table().sum_rows;
  if (is_narrow(cols)) {
    float* partials = static_cast<float*>(scratch);
    for_row_blocks(rows, cols, 0.2, partials, [&](int64_t r, int64_t n, float* partial) {
      sum_rows(x + r * cols, cols, partial, n, cols, false);
    });
    add_row_blocks(partials, rows, cols, out, cols);
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
