#include "kernels/cpu/embedding.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/block_rows.h"

namespace lowtide::cpu {
namespace {

constexpr int64_t kPanel = 256;  // columns that one thread sums at a time

int64_t row_at(int64_t index, int64_t rows) { return index < 0 ? index + rows : index; }

// positions[starts[v], starts[v + 1]) are the occurrences of row v in ascending order (a counting sort).
struct Occurrences {
  int32_t* starts;  // rows + 2: starts[v + 1] is the cursor of v while sorting
  int32_t* positions;
};

Occurrences sort_by_row(const int64_t* indices, int64_t n, int64_t rows, void* scratch) {
  int32_t* counts = static_cast<int32_t*>(scratch);
  const Occurrences sorted{counts, counts + rows + 2};
  std::memset(counts, 0, sizeof(int32_t) * (rows + 2));
  for (int64_t i = 0; i < n; ++i) ++counts[row_at(indices[i], rows) + 2];
  for (int64_t v = 2; v < rows + 2; ++v) counts[v] += counts[v - 1];
  for (int64_t i = 0; i < n; ++i) {
    sorted.positions[counts[row_at(indices[i], rows) + 1]++] = static_cast<int32_t>(i);
  }
  return sorted;
}

}  // namespace

int64_t first_bad_index(const int64_t* indices, int64_t n, int64_t rows) {
  for (int64_t i = 0; i < n; ++i) {
    if (indices[i] < -rows || indices[i] >= rows) return i;
  }
  return -1;
}

void gather_rows(const void* table, int64_t rows, int64_t row_bytes, const int64_t* indices, int64_t n, void* out) {
  const char* from = static_cast<const char*>(table);
  char* to = static_cast<char*>(out);
  for_row_chunks(n, row_bytes, 0.05, [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) {
      std::memcpy(to + i * row_bytes, from + row_at(indices[i], rows) * row_bytes, row_bytes);
    }
  });
}

int64_t scatter_add_rows_scratch_bytes(int64_t n, int64_t rows) {
  return (rows + 2 + n) * static_cast<int64_t>(sizeof(int32_t));
}

void scatter_add_rows(const float* dy, const int64_t* indices, int64_t n, float* grad, int64_t rows, int64_t cols,
                      int64_t skipped_row, bool onto, void* scratch) {
  const Occurrences sorted = sort_by_row(indices, n, rows, scratch);
  const auto gather_sum = softmax_table().gather_sum;
  const int64_t panels = (cols + kPanel - 1) / kPanel;
  // Tasks are rows times panels, so that a table of two rows is shared too.
  const double average = 1 + static_cast<double>(n) / static_cast<double>(std::max<int64_t>(rows, 1));
  for_row_chunks(rows * panels, std::min(cols, kPanel), 0.2 * average, [&](int64_t first, int64_t count) {
    for (int64_t task = first; task < first + count; ++task) {
      const int64_t row = task / panels, c = task % panels * kPanel, width = std::min(kPanel, cols - c);
      float* out = grad + row * cols + c;
      const int32_t begin = sorted.starts[row], end = row == skipped_row ? begin : sorted.starts[row + 1];
      if (begin == end && !onto) std::memset(out, 0, sizeof(float) * width);
      for (int32_t at = begin; at < end; at += kRowsPerBlock) {
        gather_sum(dy + c, cols, sorted.positions + at, std::min<int64_t>(kRowsPerBlock, end - at), out, width,
                   onto || at > begin);
      }
    }
  });
}

}  // namespace lowtide::cpu
