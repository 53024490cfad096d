#include "kernels/cpu/gemm/blocks.h"

#include <gtest/gtest.h>

namespace lowtide::cpu {
namespace {

constexpr BlockLimits kLimits{14, 32, 1022, 512};

// What the slowest of `threads` multiplies, of what it would be if all had the same.
double imbalance(int64_t m, int64_t n, int64_t batches, int threads) {
  const Blocks cut(m, n, batches, threads, kLimits);
  const int64_t turns = (cut.down * cut.right * batches + threads - 1) / threads;
  return static_cast<double>(turns * cut.rows * cut.cols * threads) / static_cast<double>(m * n * batches);
}

TEST(Blocks, GiveThreadsTheSame) {
  EXPECT_LT(imbalance(1024, 2304, 1, 2), 1.05);  // 2304 columns in five blocks are three for one thread
  for (const int64_t m : {384, 512, 768, 1024, 1576, 3072}) {
    for (const int64_t n : {384, 512, 768, 1376, 1536, 2048, 2304, 3072, 30522}) {
      for (const int threads : {1, 2, 4}) {
        SCOPED_TRACE(testing::Message() << m << " x " << n << ", " << threads << " threads");
        EXPECT_LT(imbalance(m, n, 1, threads), 1.15);
      }
    }
  }
}

TEST(Blocks, CoverTheProductInWholeTiles) {
  for (const int64_t m : {1, 13, 14, 15, 1023, 4000}) {
    for (const int64_t n : {1, 31, 33, 513, 5000}) {
      const Blocks cut(m, n, 3, 2, kLimits);
      EXPECT_GE(cut.down * cut.rows, m);
      EXPECT_LT((cut.down - 1) * cut.rows, m);
      EXPECT_GE(cut.right * cut.cols, n);
      EXPECT_LT((cut.right - 1) * cut.cols, n);
      EXPECT_EQ(cut.rows % kLimits.row_unit, 0);
      EXPECT_EQ(cut.cols % kLimits.col_unit, 0);
      EXPECT_LE(cut.rows, kLimits.most_rows);
      EXPECT_LE(cut.cols, kLimits.most_cols);
    }
  }
}

}  // namespace
}  // namespace lowtide::cpu
