#include "kernels/cpu/gemm.h"

#include "kernels/cpu/gemm_table.h"
#include "kernels/cpu/task_slots.h"

namespace lowtide::cpu {

int64_t gemm_scratch_bytes(const Gemm& call, int threads) {
  // Rounded so that every thread's part is aligned.
  return (gemm_table().scratch(call) + 15) / 16 * 16 * static_cast<int64_t>(sizeof(float)) * threads;
}

void gemm(const Gemm& call, void* scratch, int64_t scratch_bytes) {
  if (call.m == 0 || call.n == 0) return;
  const GemmTable& table = gemm_table();
  // Even parts, so that the last block of a row of blocks is not a sliver; at least one part a thread where it pays.
  const int64_t down = (call.m + table.block_rows - 1) / table.block_rows;
  const int64_t right = (call.n + table.block_cols - 1) / table.block_cols;
  const int64_t rows = (call.m + down - 1) / down, cols = (call.n + right - 1) / right;
  const bool small = 2.0 * call.m * call.n * call.k * call.batches < 4e6;
  run_tasks(call.batches * down * right, (table.scratch(call) + 15) / 16 * 16, scratch, scratch_bytes, small,
            [&](int64_t task, float* own) {
              const int64_t row = task % down * rows, col = task / down % right * cols, batch = task / (down * right);
              Gemm one = call;
              one.a += batch * call.a_batch;
              one.b += batch * call.b_batch;
              one.c += batch * call.c_batch;
              table.block(one, row, std::min(rows, call.m - row), col, std::min(cols, call.n - col), own);
            });
}

}  // namespace lowtide::cpu
