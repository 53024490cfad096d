// The gradient of a convolution's bias: sums over the places of channels-last dy, in f32, rounded where they are of 16
// bits.
#pragma once

#include "kernels/cpu/dense.h"
#include "kernels/cpu/summed_rows.h"

namespace lowtide::cpu {

inline int64_t bias_sums_bytes(int64_t rows, int64_t channels) {
  return aligned(channels * 4) + sum_columns_scratch_bytes(rows, channels);
}

inline void sum_bias(const TensorRef& dy, int64_t rows, const TensorRef& db, char* room) {
  const int64_t cols = db.numel();
  float* sums = reinterpret_cast<float*>(room);
  sum_columns({dy, 0, rows, cols}, sums, room + aligned(cols * 4));
  for (int64_t i = 0; i < cols; i += kRun) write(db, i, 1, std::min(kRun, cols - i), sums + i);
}

}  // namespace lowtide::cpu
