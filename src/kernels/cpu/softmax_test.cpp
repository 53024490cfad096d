#include "kernels/cpu/softmax.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Shape {
  int64_t rows, cols;
};
const Shape kShapes[] = {{1, 1}, {3, 3}, {17, 17}, {2, 513}, {70, 64}, {5, 1025}, {1, 50257}};

double row_log_sum_exp(const float* x, int64_t n, double scale) {
  double top = -kInf, total = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, scale * x[i]);
  for (int64_t i = 0; i < n; ++i) total += std::exp(scale * x[i] - top);
  return top + std::log(total);
}

TEST(Softmax, ForwardAndGradients) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.cols);
    const int64_t n = shape.rows * shape.cols, cols = shape.cols;
    std::vector<float> x = random_floats(n, 1, 3);
    const std::vector<float> dy = random_floats(n, 2);
    if (cols > 3) x[2] = -kInf;
    const float scale = 0.125f;
    for_every_run(
        [&] {
          std::vector<float> y(4 * n);
          softmax(x.data(), &y[0], shape.rows, cols, scale);
          log_softmax(x.data(), &y[n], shape.rows, cols);
          softmax_grad(&y[0], dy.data(), &y[2 * n], shape.rows, cols, scale);
          log_softmax_grad(&y[n], dy.data(), &y[3 * n], shape.rows, cols);
          return y;
        },
        [&](const std::vector<float>& y) {
          for (int64_t r = 0; r < shape.rows; ++r) {
            const int64_t at = r * cols;
            const double scaled = row_log_sum_exp(&x[at], cols, scale), plain = row_log_sum_exp(&x[at], cols, 1);
            double dot = 0, total = 0;
            for (int64_t i = at; i < at + cols; ++i) {
              dot += dy[i] * std::exp(scale * x[i] - scaled);
              total += dy[i];
            }
            expect_close(&y[at], cols, [&](int64_t i) { return std::exp(scale * x[at + i] - scaled); }, 2e-6, 1e-9);
            expect_close(&y[n + at], cols, [&](int64_t i) { return x[at + i] - plain; }, 1e-6, 2e-6);
            expect_close(
                &y[2 * n + at], cols,
                [&](int64_t i) { return scale * std::exp(scale * x[at + i] - scaled) * (dy[at + i] - dot); }, 1e-5,
                1e-7);
            expect_close(
                &y[3 * n + at], cols, [&](int64_t i) { return dy[at + i] - std::exp(x[at + i] - plain) * total; }, 1e-5,
                2e-5);
          }
        });
  }
}

TEST(Softmax, MaskedEntriesAreExactlyZeroAndFullyMaskedRowsNaN) {
  std::vector<float> x = {-kInf, 1, -kInf, -kInf, -kInf, -kInf}, y(6);
  for (Isa each : runnable_isas()) {
    limit_isa(each);
    softmax(x.data(), y.data(), 2, 3);
    EXPECT_EQ(y[0], 0);
    EXPECT_EQ(y[1], 1);
    EXPECT_EQ(y[2], 0);
    for (int i = 3; i < 6; ++i) EXPECT_TRUE(std::isnan(y[i]));
  }
}

TEST(RowReduce, AgreesWithDoubles) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.cols);
    const int64_t rows = shape.rows, cols = shape.cols;
    const std::vector<float> x = random_floats(rows * cols, 3);
    for_every_run(
        [&] {
          std::vector<float> out(kRowReduces * rows);
          for (int op = 0; op < kRowReduces; ++op) {
            reduce_rows(static_cast<RowReduce>(op), x.data(), &out[op * rows], rows, cols);
          }
          return out;
        },
        [&](const std::vector<float>& out) {
          for (int64_t r = 0; r < rows; ++r) {
            double sum = 0, squares = 0, top = -kInf, low = kInf;
            for (int64_t i = r * cols; i < (r + 1) * cols; ++i) {
              sum += x[i];
              squares += double{x[i]} * x[i];
              top = std::max<double>(top, x[i]);
              low = std::min<double>(low, x[i]);
            }
            const double wanted[] = {sum, sum / cols, squares, top, low};
            for (int op = 0; op < kRowReduces; ++op) {
              const double slack = op < 2 ? 1e-6 * std::sqrt(squares * cols) / (op == 1 ? cols : 1) : 0;
              expect_close(&out[op * rows + r], 1, [&](int64_t) { return wanted[op]; }, 2e-6, slack);
            }
          }
        });
  }
  const std::vector<float> nan = {1, std::nanf(""), 2, kInf, 3, 4};
  float out[2];
  reduce_rows(RowReduce::kMax, nan.data(), out, 2, 3);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(out[1], kInf);
}

TEST(SumColumns, AgreesWithDoubles) {
  for (const Shape& shape : {Shape{1, 1}, {3, 17}, {64, 3}, {65, 513}, {1025, 5}, {200, 1025}, {33, 3001}}) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.cols);
    const std::vector<float> x = random_floats(shape.rows * shape.cols, 4);
    for_every_run(
        [&] {
          std::vector<float> out(shape.cols);
          std::vector<char> scratch(sum_columns_scratch_bytes(shape.rows, shape.cols));
          sum_columns(x.data(), out.data(), shape.rows, shape.cols, scratch.data());
          return out;
        },
        [&](const std::vector<float>& out) {
          expect_close(
              out.data(), shape.cols,
              [&](int64_t c) {
                double sum = 0;
                for (int64_t r = 0; r < shape.rows; ++r) sum += x[r * shape.cols + c];
                return sum;
              },
              1e-6, 1e-6 * std::sqrt(shape.rows) * 10);
        });
  }
}

}  // namespace
}  // namespace lowtide::cpu
