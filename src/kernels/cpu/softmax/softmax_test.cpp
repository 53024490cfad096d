#include <cmath>
#include <limits>

#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

constexpr float kSoftmaxInf = std::numeric_limits<float>::infinity();

struct SoftmaxShape {
  int64_t rows, cols;
};
const SoftmaxShape kSoftmaxShapes[] = {{1, 1}, {3, 3}, {17, 17}, {2, 513}, {70, 64}, {5, 1025}, {1, 50257}};

double row_log_sum_exp(const float* x, int64_t n) {
  double top = -kSoftmaxInf, total = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max<double>(top, x[i]);
  for (int64_t i = 0; i < n; ++i) total += std::exp(x[i] - top);
  return top + std::log(total);
}

const BoundAttrs kLastAxis{{"axis", int64_t{1}}};

void run_rows(const char* kernel, const std::vector<const float*>& inputs, float* y, const SoftmaxShape& shape) {
  std::vector<TensorRef> operands;
  for (const float* input : inputs) operands.push_back(floats(input, {shape.rows, shape.cols}));
  run_kernel(kernel, operands, {floats(y, {shape.rows, shape.cols})}, kLastAxis);
}

TEST(Softmax, ForwardAndGradients) {
  for (const SoftmaxShape& shape : kSoftmaxShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.cols);
    const int64_t n = shape.rows * shape.cols, cols = shape.cols;
    std::vector<float> x = random_floats(n, 1, 3);
    const std::vector<float> dy = random_floats(n, 2);
    if (cols > 3) x[2] = -kSoftmaxInf;
    for_every_run(
        [&] {
          std::vector<float> y(4 * n);
          run_rows("cpu.Softmax", {x.data()}, &y[0], shape);
          run_rows("cpu.LogSoftmax", {x.data()}, &y[n], shape);
          run_rows("cpu.SoftmaxGrad", {dy.data(), &y[0]}, &y[2 * n], shape);
          run_rows("cpu.LogSoftmaxGrad", {dy.data(), &y[n]}, &y[3 * n], shape);
          return y;
        },
        [&](const std::vector<float>& y) {
          for (int64_t r = 0; r < shape.rows; ++r) {
            const int64_t at = r * cols;
            const double log_total = row_log_sum_exp(&x[at], cols);
            double dot = 0, total = 0;
            for (int64_t i = at; i < at + cols; ++i) {
              dot += dy[i] * std::exp(x[i] - log_total);
              total += dy[i];
            }
            expect_close(&y[at], cols, [&](int64_t i) { return std::exp(x[at + i] - log_total); }, 2e-6, 1e-9);
            expect_close(&y[n + at], cols, [&](int64_t i) { return x[at + i] - log_total; }, 1e-6, 2e-6);
            expect_close(
                &y[2 * n + at], cols, [&](int64_t i) { return std::exp(x[at + i] - log_total) * (dy[at + i] - dot); },
                1e-5, 8e-7);
            expect_close(
                &y[3 * n + at], cols, [&](int64_t i) { return dy[at + i] - std::exp(x[at + i] - log_total) * total; },
                1e-5, 2e-5);
          }
        });
  }
}

TEST(Softmax, MaskedEntriesAreExactlyZeroAndFullyMaskedRowsNaN) {
  std::vector<float> x = {-kSoftmaxInf, 1, -kSoftmaxInf, -kSoftmaxInf, -kSoftmaxInf, -kSoftmaxInf}, y(6);
  for (Isa each : runnable_isas()) {
    limit_isa(each);
    run_rows("cpu.Softmax", {x.data()}, y.data(), {2, 3});
    EXPECT_EQ(y[0], 0);
    EXPECT_EQ(y[1], 1);
    EXPECT_EQ(y[2], 0);
    for (int i = 3; i < 6; ++i) EXPECT_TRUE(std::isnan(y[i]));
  }
  limit_isa(kHighestIsa);
}

// A row of halves is one of floats, rounded once.
TEST(Softmax, HalvesAreF32RoundedOnce) {
  for (const int64_t cols : {1, 17, 600, 5000}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(testing::Message() << cols << " " << name(dtype));
      const int64_t rows = 40, n = rows * cols;
      const BoundAttrs attrs{{"axis", int64_t{1}}};
      const std::vector<uint16_t> x = halves(dtype, random_floats(n, 1, 3)), dy = halves(dtype, random_floats(n, 2));
      const std::vector<float> wide_x = widened(dtype, x), wide_dy = widened(dtype, dy);
      for (const std::string op : {"Softmax", "LogSoftmax"}) {
        const auto run = [&](const std::string& suffix, DType stored, const void* in, const void* gradient, void* out) {
          const TensorRef y = tensor(in, stored, {rows, cols}), to = tensor(out, stored, {rows, cols});
          if (gradient == nullptr) return run_kernel("cpu." + op + suffix, {y}, {to}, attrs);
          return run_kernel("cpu." + op + "Grad" + suffix, {tensor(gradient, stored, {rows, cols}), y}, {to}, attrs);
        };
        for (const bool backward : {false, true}) {
          std::vector<float> wanted(n);
          EXPECT_EQ(run("", DType::kF32, wide_x.data(), backward ? wide_dy.data() : nullptr, wanted.data()), nullptr);
          for_every_run(
              [&] {
                std::vector<uint16_t> found(n);
                EXPECT_EQ(run(".half", dtype, x.data(), backward ? dy.data() : nullptr, found.data()), nullptr);
                return widened(dtype, found);
              },
              [](const std::vector<float>&) {});
          std::vector<uint16_t> found(n);
          run(".half", dtype, x.data(), backward ? dy.data() : nullptr, found.data());
          EXPECT_EQ(found, halves(dtype, wanted));
        }
      }
    }
  }
}

// Rows side by side are what they are one after another.
TEST(Softmax, PlanesAreAsRows) {
  constexpr int64_t kOuter = 2, kSize = 5, kInner = 300, kAll = kOuter * kSize * kInner;
  const BoundAttrs axis{{"axis", int64_t{1}}};
  const std::vector<float> x = random_floats(kAll, 1, 3), dy = random_floats(kAll, 2);
  const auto turned = [&](const float* planes) {
    std::vector<float> rows(kAll);
    for (int64_t i = 0; i < kAll; ++i)
      rows[(i / (kSize * kInner) * kInner + i % kInner) * kSize + i / kInner % kSize] = planes[i];
    return rows;
  };
  const std::vector<float> row_x = turned(x.data()), row_dy = turned(dy.data());
  const SoftmaxShape rows{kOuter * kInner, kSize};
  for_every_run(
      [&] {
        std::vector<float> found(4 * kAll);
        const auto run = [&](const char* kernel, const std::vector<const float*>& inputs, int64_t to) {
          std::vector<TensorRef> operands;
          for (const float* input : inputs) operands.push_back(floats(input, {kOuter, kSize, kInner}));
          run_kernel(kernel, operands, {floats(&found[to * kAll], {kOuter, kSize, kInner})}, axis);
        };
        run("cpu.Softmax.planes", {x.data()}, 0);
        run("cpu.LogSoftmax.planes", {x.data()}, 1);
        run("cpu.SoftmaxGrad.planes", {dy.data(), &found[0]}, 2);
        run("cpu.LogSoftmaxGrad.planes", {dy.data(), &found[kAll]}, 3);
        return found;
      },
      [&](const std::vector<float>& found) {
        std::vector<float> wanted(kAll);
        const char* kernels[] = {"cpu.Softmax", "cpu.LogSoftmax", "cpu.SoftmaxGrad", "cpu.LogSoftmaxGrad"};
        for (int64_t k = 0; k < 4; ++k) {
          const std::vector<float> result = turned(&found[k * kAll]), y = turned(&found[k % 2 * kAll]);
          run_rows(kernels[k], k < 2 ? std::vector{row_x.data()} : std::vector{row_dy.data(), y.data()}, wanted.data(),
                   rows);
          expect_close(result.data(), kAll, [&](int64_t i) { return wanted[i]; }, 2e-6, 1e-6);
        }
      });
}

}  // namespace
}  // namespace lowtide::cpu
