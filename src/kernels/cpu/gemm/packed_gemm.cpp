#include "kernels/cpu/gemm/packed_gemm.h"

#include "kernels/cpu/gemm/gemm_table.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {

namespace {

constexpr int64_t kFloatBytes = sizeof(float);
// Of the narrowest blocks: with these a product took up to 12 % longer, for A is packed more often.
constexpr int64_t kLeastCols = 128;

int64_t slot_floats(const Gemm& call, const Blocks& blocks) {
  return gemm_table().scratch(call, blocks.rows, blocks.cols);
}

Blocks fastest_blocks(const Gemm& call, int threads, int64_t most_cols) {
  BlockLimits limits = gemm_table().limits;
  limits.most_cols = most_cols;
  return {call.m, call.n, call.batches, threads, limits};
}

// The fastest whose scratch is no more than that, or the narrowest.
Blocks blocks_within(const Gemm& call, int threads, int64_t bytes) {
  Blocks blocks = fastest_blocks(call, threads, gemm_table().limits.most_cols);
  while (blocks.cols > kLeastCols && slot_floats(call, blocks) * kFloatBytes > bytes)
    blocks = fastest_blocks(call, threads, blocks.cols - gemm_table().limits.col_unit);
  return blocks;
}

}  // namespace

int64_t packed_gemm_scratch_bytes(const Gemm& call, int threads) {
  if (call.m == 0 || call.n == 0) return 0;
  const Blocks blocks = fastest_blocks(call, threads, gemm_table().limits.most_cols);
  return std::max(slot_floats(call, blocks) * kFloatBytes * threads, least_packed_gemm_scratch_bytes(call, threads));
}

int64_t least_packed_gemm_scratch_bytes(const Gemm& call, int threads) {
  if (call.m == 0 || call.n == 0) return 0;
  return gemm_table().scratch(call, call.m, std::min(call.n, kLeastCols)) * kFloatBytes * threads;
}

void packed_gemm(const Gemm& call, void* scratch, int64_t scratch_bytes) {
  if (call.m == 0 || call.n == 0) return;
  const GemmTable& table = gemm_table();
  const bool small = 2.0 * call.m * call.n * call.k * call.batches < 4e6;
  const int threads = parallel_threads();
  const Blocks blocks = blocks_within(call, threads, scratch_bytes / threads);
  run_tasks(call.batches * blocks.down * blocks.right, slot_floats(call, blocks), scratch, scratch_bytes, small,
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
