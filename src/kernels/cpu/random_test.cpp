#include "kernels/cpu/random.h"

#include <cmath>

#include "kernels/cpu/test_runs.h"
#include "kernels/philox.h"

namespace lowtide::cpu {
namespace {

constexpr uint64_t kKey = 0x0123456789abcdef, kStream = 0xfeedfacecafe;

TEST(Dropout, EveryIsaAndCutKeepsWhatThePhiloxHeaderKeeps) {
  for (int64_t n : {1, 3, 17, 64, 513, 70001}) {
    for (double p : {0.0, 0.1, 0.75, 1.0}) {
      SCOPED_TRACE(testing::Message() << n << " elements, p = " << p);
      const std::vector<float> x = random_floats(n, 1);
      for_every_run(
          [&] {
            const DropoutRule rule = dropout_rule(p, kKey, kStream);
            std::vector<float> y(2 * n);
            std::vector<uint8_t> keep(n);
            dropout(rule, x.data(), y.data(), n);
            dropout_mask(rule, keep.data(), n);
            std::copy(keep.begin(), keep.end(), y.begin() + n);
            return y;
          },
          [&](const std::vector<float>& y) {
            for (int64_t i = 0; i < n; ++i) {
              const bool keep = dropout_keep(kKey, kStream, i, dropout_threshold(p));
              ASSERT_EQ(y[i], keep ? x[i] * dropout_scale(p) : 0) << i;
              ASSERT_EQ(y[n + i], keep) << i;
            }
          });
    }
  }
}

TEST(Dropout, DroppedInfinityIsZero) {
  std::vector<float> x(200, INFINITY), y(200);
  for (Isa each : runnable_isas()) {
    limit_isa(each);
    dropout(dropout_rule(0.5, 1, 2), x.data(), y.data(), 200);
    for (float v : y) EXPECT_TRUE(v == 0 || v == INFINITY);
  }
}

TEST(Random, UniformAndNormalHaveTheirMoments) {
  const int64_t n = 100001;
  std::vector<uint32_t> first;
  for_every_run(
      [&] {
        std::vector<float> y(2 * n);
        random_uniform(kKey, kStream, 0, 1, y.data(), n);
        random_normal(kKey, kStream + 1, 1, 2, y.data() + n, n);
        return y;
      },
      [&](const std::vector<float>& y) {
        double sum = 0, squares = 0, below = 0;
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(y[i], lowtide::random_uniform(kKey, kStream, i));
          ASSERT_EQ(y[n + i], static_cast<float>(1 + 2 * lowtide::random_normal(kKey, kStream + 1, i)));
          sum += y[n + i];
          squares += (y[n + i] - 1) * (y[n + i] - 1);
          below += y[n + i] < -1;
        }
        EXPECT_NEAR(sum / n, 1, 0.03);
        EXPECT_NEAR(squares / n, 4, 0.08);
        EXPECT_NEAR(below / n, 0.158655, 0.005);  // the normal distribution below one deviation
      });
}

}  // namespace
}  // namespace lowtide::cpu
