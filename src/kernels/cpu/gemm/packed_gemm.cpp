#include "kernels/cpu/gemm/packed_gemm.h"

#include "kernels/cpu/gemm/gemm_table.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {

namespace {

int64_t slot_floats(const Gemm& call) { return gemm_table().scratch(call); }

}  // namespace

int64_t packed_gemm_scratch_bytes(const Gemm& call, int threads) {
  return slot_floats(call) * static_cast<int64_t>(sizeof(float)) * threads;
}

void packed_gemm(const Gemm& call, void* scratch, int64_t scratch_bytes) {
  if (call.m == 0 || call.n == 0) return;
  const GemmTable& table = gemm_table();
  const Blocks blocks(call.m, call.n, call.batches, parallel_threads(), table.limits);
  const bool small = 2.0 * call.m * call.n * call.k * call.batches < 4e6;
  run_tasks(call.batches * blocks.down * blocks.right, slot_floats(call), scratch, scratch_bytes, small,
            [&](int64_t task, float* own) {
              const int64_t row = task % blocks.down * blocks.rows;
              const int64_t col = task / blocks.down % blocks.right * blocks.cols;
              const int64_t batch = task / (blocks.down * blocks.right);
              Gemm one = call;
              one.a += batch * call.a_batch;
              one.b += batch * call.b_batch;
              one.c += batch * call.c_batch;
              table.block(one, row, std::min(blocks.rows, call.m - row), col, std::min(blocks.cols, call.n - col), own);
            });
}

}  // namespace lowtide::cpu
