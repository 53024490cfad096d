#include <cmath>

#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

struct NormsShape {
  int64_t rows, cols;
};
const NormsShape kNormsShapes[] = {{1, 1}, {3, 17}, {65, 64}, {33, 513}, {100, 1025}};
const float kEpsilon = 1e-5f;
const BoundAttrs kAttrs{{"axis", int64_t{1}}, {"epsilon", 1e-5}};

// Null operands are absent.
void layer_norm(const float* x, const float* weight, const float* bias, float* y, float* mean, float* inv_std,
                int64_t rows, int64_t cols) {
  run_kernel("cpu.LayerNormalization", {floats(x, {rows, cols}), floats(weight, {cols}), floats(bias, {cols})},
             {floats(y, {rows, cols}), floats(mean, {rows}), floats(inv_std, {rows})}, kAttrs);
}
void layer_norm_grad(const float* dy, const float* x, const float* weight, const float* mean, const float* inv_std,
                     float* dx, float* dweight, float* dbias, int64_t rows, int64_t cols) {
  run_kernel("cpu.LayerNormalizationGrad",
             {floats(dy, {rows, cols}), floats(x, {rows, cols}), floats(mean, {rows}), floats(inv_std, {rows}),
              floats(weight, {cols})},
             {floats(dx, {rows, cols}), floats(dweight, {cols}), floats(dbias, {cols})}, kAttrs);
}
void rms_norm(const float* x, const float* weight, float* y, float* inv_std, int64_t rows, int64_t cols) {
  run_kernel("cpu.SimplifiedLayerNormalization", {floats(x, {rows, cols}), floats(weight, {cols})},
             {floats(y, {rows, cols}), floats(inv_std, {rows})}, kAttrs);
}
void rms_norm_grad(const float* dy, const float* x, const float* weight, const float* inv_std, float* dx,
                   float* dweight, int64_t rows, int64_t cols) {
  run_kernel("cpu.SimplifiedLayerNormalizationGrad",
             {floats(dy, {rows, cols}), floats(x, {rows, cols}), floats(inv_std, {rows}), floats(weight, {cols})},
             {floats(dx, {rows, cols}), floats(dweight, {cols})}, kAttrs);
}

// The formulas of norms.cpp in doubles; center = false is RMS norm.
struct Oracle {
  std::vector<double> y, mean, inv_std, dx, dweight, dbias;
  Oracle(const NormsShape& shape, bool center, const float* x, const float* weight, const float* bias, const float* dy)
      : y(shape.rows * shape.cols),
        mean(shape.rows),
        inv_std(shape.rows),
        dx(y.size()),
        dweight(shape.cols),
        dbias(shape.cols) {
    const int64_t cols = shape.cols;
    for (int64_t r = 0; r < shape.rows; ++r) {
      double m = 0, v = 0, mean_w = 0, mean_dot = 0;
      for (int64_t c = 0; c < cols && center; ++c) m += x[r * cols + c] / double(cols);
      for (int64_t c = 0; c < cols; ++c) v += std::pow(x[r * cols + c] - m, 2) / cols;
      mean[r] = m;
      inv_std[r] = 1 / std::sqrt(v + kEpsilon);
      const auto xhat = [&](int64_t c) { return (x[r * cols + c] - m) * inv_std[r]; };
      const auto w = [&](int64_t c) { return double{dy[r * cols + c]} * weight[c]; };
      for (int64_t c = 0; c < cols; ++c) {
        y[r * cols + c] = xhat(c) * weight[c] + (center ? bias[c] : 0);
        dweight[c] += dy[r * cols + c] * xhat(c);
        dbias[c] += dy[r * cols + c];
        mean_w += center ? w(c) / cols : 0;
        mean_dot += w(c) * xhat(c) / cols;
      }
      for (int64_t c = 0; c < cols; ++c) dx[r * cols + c] = inv_std[r] * (w(c) - mean_w - xhat(c) * mean_dot);
    }
  }
};

void expect_near(const float* found, const std::vector<double>& wanted, double relative, double absolute) {
  expect_close(found, wanted.size(), [&](int64_t i) { return wanted[i]; }, relative, absolute);
}

TEST(LayerNorm, ForwardAndGradient) {
  for (const NormsShape& shape : kNormsShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.cols);
    const int64_t n = shape.rows * shape.cols, rows = shape.rows, cols = shape.cols;
    std::vector<float> x = random_floats(n, 1, 2), dy = random_floats(n, 2), weight = random_floats(cols, 3),
                       bias = random_floats(cols, 4);
    for (float& v : x) v += 1;
    const Oracle oracle(shape, true, x.data(), weight.data(), bias.data(), dy.data());
    for_every_run(
        [&] {
          std::vector<float> out(2 * n + 2 * rows + 2 * cols);
          float *y = out.data(), *dx = y + n, *mean = dx + n, *inv_std = mean + rows, *dweight = inv_std + rows;
          layer_norm(x.data(), weight.data(), bias.data(), y, mean, inv_std, rows, cols);
          layer_norm_grad(dy.data(), x.data(), weight.data(), mean, inv_std, dx, dweight, dweight + cols, rows, cols);
          return out;
        },
        [&](const std::vector<float>& out) {
          const float *y = out.data(), *dx = y + n, *mean = dx + n, *inv_std = mean + rows, *dweight = inv_std + rows;
          const double slack = cols == 1 ? 2e-4 : 3e-6;
          expect_near(y, oracle.y, 3e-6, slack * 10);
          expect_near(mean, oracle.mean, 1e-6, 1e-6);
          expect_near(inv_std, oracle.inv_std, 3e-6, 0);
          expect_near(dx, oracle.dx, 1e-5, slack * 300);
          expect_near(dweight, oracle.dweight, 1e-5, slack * 50);
          expect_near(dweight + cols, oracle.dbias, 1e-5, 2e-5);
        });
  }
}

TEST(RmsNorm, ForwardAndGradient) {
  for (const NormsShape& shape : kNormsShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.cols);
    const int64_t n = shape.rows * shape.cols, rows = shape.rows, cols = shape.cols;
    const std::vector<float> x = random_floats(n, 1, 2), dy = random_floats(n, 2), weight = random_floats(cols, 3);
    const Oracle oracle(shape, false, x.data(), weight.data(), nullptr, dy.data());
    for_every_run(
        [&] {
          std::vector<float> out(2 * n + rows + cols);
          float *y = out.data(), *dx = y + n, *inv_std = dx + n, *dweight = inv_std + rows;
          rms_norm(x.data(), weight.data(), y, inv_std, rows, cols);
          rms_norm_grad(dy.data(), x.data(), weight.data(), inv_std, dx, dweight, rows, cols);
          return out;
        },
        [&](const std::vector<float>& out) {
          const float *y = out.data(), *dx = y + n, *inv_std = dx + n, *dweight = inv_std + rows;
          expect_near(y, oracle.y, 3e-6, 1e-6);
          expect_near(inv_std, oracle.inv_std, 3e-6, 0);
          expect_near(dx, oracle.dx, 1e-5, 1e-5);
          expect_near(dweight, oracle.dweight, 1e-5, 3e-5);
        });
  }
}

// What is made again in backward is often the statistics alone.
TEST(Norms, StatisticsAreTheSameBitsWithoutTheResult) {
  const int64_t rows = 5, cols = 37;
  const std::vector<float> x = random_floats(rows * cols, 5);
  std::vector<float> y(rows * cols), mean(rows), inv_std(rows), mean_alone(rows), inv_std_alone(rows);
  layer_norm(x.data(), nullptr, nullptr, y.data(), mean.data(), inv_std.data(), rows, cols);
  layer_norm(x.data(), nullptr, nullptr, nullptr, mean_alone.data(), inv_std_alone.data(), rows, cols);
  EXPECT_EQ(mean_alone, mean);
  EXPECT_EQ(inv_std_alone, inv_std);
  rms_norm(x.data(), nullptr, y.data(), inv_std.data(), rows, cols);
  rms_norm(x.data(), nullptr, nullptr, inv_std_alone.data(), rows, cols);
  EXPECT_EQ(inv_std_alone, inv_std);
}

TEST(LayerNorm, AbsentParametersAreOnesAndZeros) {
  const int64_t rows = 5, cols = 37;
  const std::vector<float> x = random_floats(rows * cols, 5), dy = random_floats(rows * cols, 6), ones(cols, 1.0f),
                           zeros(cols);
  std::vector<float> with(rows * cols), without(rows * cols), mean(rows), inv_std(rows);
  layer_norm(x.data(), ones.data(), zeros.data(), with.data(), mean.data(), inv_std.data(), rows, cols);
  layer_norm(x.data(), nullptr, nullptr, without.data(), nullptr, nullptr, rows, cols);
  EXPECT_EQ(with, without);
  layer_norm_grad(dy.data(), x.data(), ones.data(), mean.data(), inv_std.data(), with.data(), nullptr, nullptr, rows,
                  cols);
  std::vector<float> dweight(cols);
  layer_norm_grad(dy.data(), x.data(), nullptr, mean.data(), inv_std.data(), without.data(), dweight.data(), nullptr,
                  rows, cols);
  EXPECT_EQ(with, without);
}

}  // namespace
}  // namespace lowtide::cpu
