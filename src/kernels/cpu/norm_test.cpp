#include "kernels/cpu/norm.h"

#include <cmath>

#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

struct Shape {
  int64_t rows, cols;
};
const Shape kShapes[] = {{1, 1}, {3, 17}, {65, 64}, {33, 513}, {100, 1025}};
constexpr float kEps = 1e-5f;

// The formulas of norm.h in doubles; center = false is RMS norm.
struct Oracle {
  std::vector<double> y, mean, rstd, dx, dgamma, dbeta;
  Oracle(const Shape& shape, bool center, const float* x, const float* gamma, const float* beta, const float* dy)
      : y(shape.rows * shape.cols),
        mean(shape.rows),
        rstd(shape.rows),
        dx(y.size()),
        dgamma(shape.cols),
        dbeta(shape.cols) {
    const int64_t cols = shape.cols;
    for (int64_t r = 0; r < shape.rows; ++r) {
      double m = 0, v = 0, mean_w = 0, mean_dot = 0;
      for (int64_t c = 0; c < cols && center; ++c) m += x[r * cols + c] / double(cols);
      for (int64_t c = 0; c < cols; ++c) v += std::pow(x[r * cols + c] - m, 2) / cols;
      mean[r] = m;
      rstd[r] = 1 / std::sqrt(v + kEps);
      const auto xhat = [&](int64_t c) { return (x[r * cols + c] - m) * rstd[r]; };
      const auto w = [&](int64_t c) { return double{dy[r * cols + c]} * gamma[c]; };
      for (int64_t c = 0; c < cols; ++c) {
        y[r * cols + c] = xhat(c) * gamma[c] + (center ? beta[c] : 0);
        dgamma[c] += dy[r * cols + c] * xhat(c);
        dbeta[c] += dy[r * cols + c];
        mean_w += center ? w(c) / cols : 0;
        mean_dot += w(c) * xhat(c) / cols;
      }
      for (int64_t c = 0; c < cols; ++c) dx[r * cols + c] = rstd[r] * (w(c) - mean_w - xhat(c) * mean_dot);
    }
  }
};

void expect_near(const float* found, const std::vector<double>& wanted, double relative, double absolute) {
  expect_close(found, wanted.size(), [&](int64_t i) { return wanted[i]; }, relative, absolute);
}

TEST(LayerNorm, ForwardAndGradient) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.cols);
    const int64_t n = shape.rows * shape.cols, rows = shape.rows, cols = shape.cols;
    std::vector<float> x = random_floats(n, 1, 2), dy = random_floats(n, 2), gamma = random_floats(cols, 3),
                       beta = random_floats(cols, 4);
    for (float& v : x) v += 1;
    const Oracle oracle(shape, true, x.data(), gamma.data(), beta.data(), dy.data());
    for_every_run(
        [&] {
          std::vector<char> scratch(norm_grad_scratch_bytes(rows, cols));
          std::vector<float> out(2 * n + 2 * rows + 2 * cols);
          float *y = out.data(), *dx = y + n, *mean = dx + n, *rstd = mean + rows, *dgamma = rstd + rows;
          layer_norm(x.data(), gamma.data(), beta.data(), y, mean, rstd, rows, cols, kEps);
          layer_norm_grad(dy.data(), x.data(), gamma.data(), mean, rstd, dx, dgamma, dgamma + cols, rows, cols,
                          scratch.data());
          return out;
        },
        [&](const std::vector<float>& out) {
          const float *y = out.data(), *dx = y + n, *mean = dx + n, *rstd = mean + rows, *dgamma = rstd + rows;
          const double slack = cols == 1 ? 2e-4 : 3e-6;
          expect_near(y, oracle.y, 3e-6, slack * 10);
          expect_near(mean, oracle.mean, 1e-6, 1e-6);
          expect_near(rstd, oracle.rstd, 3e-6, 0);
          expect_near(dx, oracle.dx, 1e-5, slack * 300);
          expect_near(dgamma, oracle.dgamma, 1e-5, slack * 50);
          expect_near(dgamma + cols, oracle.dbeta, 1e-5, 2e-5);
        });
  }
}

TEST(RmsNorm, ForwardAndGradient) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.cols);
    const int64_t n = shape.rows * shape.cols, rows = shape.rows, cols = shape.cols;
    const std::vector<float> x = random_floats(n, 1, 2), dy = random_floats(n, 2), gamma = random_floats(cols, 3);
    const Oracle oracle(shape, false, x.data(), gamma.data(), nullptr, dy.data());
    for_every_run(
        [&] {
          std::vector<char> scratch(norm_grad_scratch_bytes(rows, cols));
          std::vector<float> out(2 * n + rows + cols);
          float *y = out.data(), *dx = y + n, *rstd = dx + n, *dgamma = rstd + rows;
          rms_norm(x.data(), gamma.data(), y, rstd, rows, cols, kEps);
          rms_norm_grad(dy.data(), x.data(), gamma.data(), rstd, dx, dgamma, rows, cols, scratch.data());
          return out;
        },
        [&](const std::vector<float>& out) {
          const float *y = out.data(), *dx = y + n, *rstd = dx + n, *dgamma = rstd + rows;
          expect_near(y, oracle.y, 3e-6, 1e-6);
          expect_near(rstd, oracle.rstd, 3e-6, 0);
          expect_near(dx, oracle.dx, 1e-5, 1e-5);
          expect_near(dgamma, oracle.dgamma, 1e-5, 3e-5);
        });
  }
}

// What is made again in backward is often the statistics alone.
TEST(Norms, StatisticsAreTheSameBitsWithoutTheResult) {
  const int64_t rows = 5, cols = 37;
  const std::vector<float> x = random_floats(rows * cols, 5);
  std::vector<float> y(rows * cols), mean(rows), rstd(rows), mean_alone(rows), rstd_alone(rows);
  layer_norm(x.data(), nullptr, nullptr, y.data(), mean.data(), rstd.data(), rows, cols, kEps);
  layer_norm(x.data(), nullptr, nullptr, nullptr, mean_alone.data(), rstd_alone.data(), rows, cols, kEps);
  EXPECT_EQ(mean_alone, mean);
  EXPECT_EQ(rstd_alone, rstd);
  rms_norm(x.data(), nullptr, y.data(), rstd.data(), rows, cols, kEps);
  rms_norm(x.data(), nullptr, nullptr, rstd_alone.data(), rows, cols, kEps);
  EXPECT_EQ(rstd_alone, rstd);
}

TEST(LayerNorm, AbsentParametersAreOnesAndZeros) {
  const int64_t rows = 5, cols = 37;
  const std::vector<float> x = random_floats(rows * cols, 5), dy = random_floats(rows * cols, 6), ones(cols, 1.0f),
                           zeros(cols);
  std::vector<float> with(rows * cols), without(rows * cols), mean(rows), rstd(rows);
  layer_norm(x.data(), ones.data(), zeros.data(), with.data(), mean.data(), rstd.data(), rows, cols, kEps);
  layer_norm(x.data(), nullptr, nullptr, without.data(), nullptr, nullptr, rows, cols, kEps);
  EXPECT_EQ(with, without);
  layer_norm_grad(dy.data(), x.data(), ones.data(), mean.data(), rstd.data(), with.data(), nullptr, nullptr, rows, cols,
                  nullptr);
  std::vector<float> dgamma(cols);
  std::vector<char> scratch(norm_grad_scratch_bytes(rows, cols));
  layer_norm_grad(dy.data(), x.data(), nullptr, mean.data(), rstd.data(), without.data(), dgamma.data(), nullptr, rows,
                  cols, scratch.data());
  EXPECT_EQ(with, without);
}

}  // namespace
}  // namespace lowtide::cpu
