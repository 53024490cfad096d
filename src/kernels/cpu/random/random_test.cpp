#include <cmath>

#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"
#include "kernels/philox.h"

namespace lowtide::cpu {
namespace {

constexpr uint64_t kKey = 0x0123456789abcdef, kStream = 0xfeedfacecafe;

void dropout(double p, uint64_t key, uint64_t stream, const float* x, float* y, int64_t n) {
  run_kernel("cpu.Dropout", {floats(x, {n})}, {floats(y, {n})},
             {{"ratio", p}, {"stream", static_cast<int64_t>(stream)}}, key);
}

TEST(Dropout, EveryIsaAndCutKeepsWhatThePhiloxHeaderKeeps) {
  for (int64_t n : {1, 3, 17, 64, 513, 70001}) {
    for (double p : {0.0, 0.1, 0.75, 1.0}) {
      SCOPED_TRACE(testing::Message() << n << " elements, p = " << p);
      const std::vector<float> x = random_floats(n, 1);
      for_every_run(
          [&] {
            std::vector<float> y(n);
            dropout(p, kKey, kStream, x.data(), y.data(), n);
            return y;
          },
          [&](const std::vector<float>& y) {
            for (int64_t i = 0; i < n; ++i) {
              const bool keep = dropout_keep(kKey, kStream, i, dropout_threshold(p));
              ASSERT_EQ(y[i], keep ? x[i] * dropout_scale(p) : 0) << i;
            }
          });
    }
  }
}

TEST(Dropout, DroppedInfinityIsZero) {
  std::vector<float> x(200, INFINITY), y(200);
  for (Isa each : runnable_isas()) {
    limit_isa(each);
    dropout(0.5, 1, 2, x.data(), y.data(), 200);
    for (float v : y) EXPECT_TRUE(v == 0 || v == INFINITY);
  }
  limit_isa(kHighestIsa);
}

TEST(Dropout, OfDoublesIsTheReferences) {
  const std::vector<float> random = random_floats(70001, 1);
  std::vector<double> x(random.begin(), random.end());
  x[3] = INFINITY;
  const int64_t n = static_cast<int64_t>(x.size());
  for (const double p : {0.0, 0.1, 0.75, 1.0}) {
    SCOPED_TRACE(p);
    const auto run = [&](const std::string& kernel) {
      std::vector<double> y(n);
      run_kernel(kernel, {tensor(x.data(), DType::kF64, {n})}, {tensor(y.data(), DType::kF64, {n})},
                 {{"ratio", p}, {"stream", static_cast<int64_t>(kStream)}}, kKey);
      return y;
    };
    const std::vector<double> wanted = run("reference.Dropout");
    for_every_run([&] { return run("cpu.Dropout.f64"); },
                  [&](const std::vector<double>& found) { EXPECT_EQ(found, wanted); });
  }
}

// In place, and in rows of a stream that begin within a group of it.
TEST(Dropout, HalvesAreDroppedAsFloatsAre) {
  constexpr int64_t rows = 5, width = 4100;
  const std::vector<int64_t> rows_at = {7, 0, 3, 3, 11};
  for (const bool in_rows : {false, true}) {
    const std::vector<BFloat16> x = brains(random_floats(rows * width, 3));
    const std::vector<float> wide(x.begin(), x.end());
    const TensorRef chosen = in_rows ? integers(rows_at) : TensorRef{};
    const BoundAttrs attrs{{"ratio", 0.25}, {"stream", int64_t{9}}};
    for_every_run(
        [&] {
          std::vector<BFloat16> y = x;
          const TensorRef both = brains(y.data(), {rows, width});
          run_kernel("cpu.DropoutGrad", {both, chosen}, {both}, attrs, 5);
          return y;
        },
        [&](const std::vector<BFloat16>& y) {
          std::vector<float> wanted(rows * width);
          run_kernel("cpu.DropoutGrad", {floats(wide.data(), {rows, width}), chosen},
                     {floats(wanted.data(), {rows, width})}, attrs, 5);
          for (int64_t i = 0; i < rows * width; ++i) ASSERT_EQ(y[i].bits, BFloat16(wanted[i]).bits) << i;
        });
  }
}

TEST(Random, UniformAndNormalHaveTheirMoments) {
  const int64_t n = 100001;
  for_every_run(
      [&] {
        std::vector<float> y(2 * n);
        run_kernel("cpu.RandomUniform", {}, {floats(y.data(), {n})},
                   {{"low", 0.0}, {"high", 1.0}, {"stream", static_cast<int64_t>(kStream)}}, kKey);
        run_kernel("cpu.RandomNormal", {}, {floats(y.data() + n, {n})},
                   {{"mean", 1.0}, {"scale", 2.0}, {"stream", static_cast<int64_t>(kStream + 1)}}, kKey);
        return y;
      },
      [&](const std::vector<float>& y) {
        double sum = 0, squares = 0, below = 0;
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(y[i], random_uniform(kKey, kStream, i));
          ASSERT_EQ(y[n + i], static_cast<float>(1 + 2 * random_normal(kKey, kStream + 1, i)));
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
