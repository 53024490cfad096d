// Softmax and row reductions over dense f32 [rows, cols]. A row is summed whole by one thread in the order of simd.h's
// row_sum. Outputs may be the inputs themselves.
#pragma once

#include <cstdint>

namespace lowtide::cpu {

// y = softmax(scale x). A row of -inf alone gives NaN, as in PyTorch.
void softmax(const float* x, float* y, int64_t rows, int64_t cols, float scale = 1);
// y = x - log(sum(exp(x)))
void log_softmax(const float* x, float* y, int64_t rows, int64_t cols);
// dx = scale y (dy - sum(y dy)), y = softmax(scale x)
void softmax_grad(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols, float scale = 1);
// dx = dy - exp(y) sum(dy), y = log_softmax(x)
void log_softmax_grad(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols);

enum class RowReduce : uint8_t { kSum, kMean, kSumSquares, kMax, kMin };
constexpr int kRowReduces = static_cast<int>(RowReduce::kMin) + 1;
// out[r] over row r; maximum and minimum hand on NaN. cols >= 1 for those.
void reduce_rows(RowReduce op, const float* x, float* out, int64_t rows, int64_t cols);

// out[c] = sum over rows: blocks of kRowsPerBlock rows, each summed in order, then the blocks in order.
constexpr int64_t kRowsPerBlock = 32;
void sum_columns(const float* x, float* out, int64_t rows, int64_t cols, void* scratch);
int64_t sum_columns_scratch_bytes(int64_t rows, int64_t cols);

}  // namespace lowtide::cpu
