#include "kernels/cpu/pointwise.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Every 40,009th float of all, with the ends.
std::vector<float> all_floats() {
  std::vector<float> values = {0.0f, -0.0f, kInf, -kInf, kNaN, 1e-45f, -1e-45f, 3.4028235e38f, -3.4028235e38f, 1.0f};
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 40009) {
    float value;
    const uint32_t word = static_cast<uint32_t>(bits);
    std::memcpy(&value, &word, 4);
    values.push_back(value);
  }
  return values;
}

struct UnaryCase {
  UnaryOp op;
  double (*exact)(double);
  double relative;
  double absolute = 1.2e-38;  // results below the normal range may be flushed
  float a = 0, b = 0;
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

void check_unary(const UnaryCase& each, const std::vector<float>& x) {
  SCOPED_TRACE(testing::Message() << "unary op " << static_cast<int>(each.op));
  for_every_run(
      [&] {
        std::vector<float> y(x.size());
        unary(each.op, x.data(), y.data(), y.size(), each.a, each.b);
        return y;
      },
      [&](const std::vector<float>& y) {
        expect_close(
            y.data(), y.size(), [&](int64_t i) { return static_cast<float>(each.exact(x[i])); }, each.relative,
            each.absolute);
      });
}

TEST(Pointwise, VectorMathIsWithinFiveInTenMillionEverywhere) {
  const std::vector<float> x = all_floats();
  check_unary({UnaryOp::kExp, [](double v) { return std::exp(v); }, 3e-7, 1.5e-45}, x);
  check_unary({UnaryOp::kLog, [](double v) { return std::log(v); }, 3e-7}, x);
  check_unary({UnaryOp::kTanh, [](double v) { return std::tanh(v); }, 3e-7}, x);
  check_unary({UnaryOp::kErf, [](double v) { return std::erf(v); }, 3e-7}, x);
  check_unary({UnaryOp::kSigmoid, sigmoid, 4e-7}, x);
  check_unary({UnaryOp::kSqrt, [](double v) { return std::sqrt(v); }, 1e-7, 0}, x);
  check_unary({UnaryOp::kRsqrt, [](double v) { return 1 / std::sqrt(v); }, 2e-7}, x);
  check_unary({UnaryOp::kReciprocal, [](double v) { return 1 / v; }, 1e-7}, x);
  check_unary({UnaryOp::kFloor, [](double v) { return std::floor(v); }, 0, 0}, x);
  check_unary({UnaryOp::kCeil, [](double v) { return std::ceil(v); }, 0, 0}, x);
  check_unary({UnaryOp::kRound, [](double v) { return std::nearbyint(v); }, 0, 0}, x);
  check_unary({UnaryOp::kAbs, [](double v) { return std::abs(v); }, 0, 0}, x);
  check_unary({UnaryOp::kNeg, [](double v) { return -v; }, 0, 0}, x);
  check_unary({UnaryOp::kRelu, [](double v) { return v != v ? v : std::max(v, 0.0); }, 0, 0}, x);
  check_unary({UnaryOp::kSoftplus, [](double v) { return v > 50 ? v : std::log1p(std::exp(v)); }, 4e-7}, x);
}

TEST(Pointwise, ActivationsNearTheOrigin) {
  std::vector<float> x = random_floats(100003, 1, 3);
  const double c = std::sqrt(2 / M_PI);
  check_unary({UnaryOp::kGelu, [](double v) { return v * normal_cdf(v); }, 4e-7, 1e-6}, x);
  check_unary(
      {UnaryOp::kGeluTanh,
       [](double v) { return v / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))); }, 4e-7, 1e-6},
      x);
  check_unary({UnaryOp::kSilu, [](double v) { return v * sigmoid(v); }, 4e-7}, x);
  check_unary({UnaryOp::kQuickGelu, [](double v) { return v * sigmoid(1.702 * v); }, 2e-6, 1e-6, 1.702f}, x);
  check_unary({UnaryOp::kElu, [](double v) { return v > 0 ? v : 1.5 * std::expm1(v); }, 5e-7, 0, 1.5f}, x);
  check_unary({UnaryOp::kHardSwish, [](double v) { return v * std::min(1.0, std::max(0.0, v / 6 + 0.5)); }, 3e-7, 1e-6},
              x);
  check_unary({UnaryOp::kClip, [](double v) { return std::min(1.0, std::max(-0.5, v)); }, 0, 0, -0.5f, 1.0f}, x);
  (void)c;
}

TEST(Pointwise, GradientsAreTheSlopes) {
  struct Case {
    UnaryGradOp op;
    double (*f)(double);
    float a = 0;
  };
  const Case cases[] = {
      {UnaryGradOp::kGelu, [](double v) { return v * normal_cdf(v); }},
      {UnaryGradOp::kGeluTanh,
       [](double v) { return v / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))); }},
      {UnaryGradOp::kSilu, [](double v) { return v * sigmoid(v); }},
      {UnaryGradOp::kQuickGelu, [](double v) { return v * sigmoid(static_cast<double>(1.702f) * v); }, 1.702f},
      {UnaryGradOp::kSoftplus, [](double v) { return std::log1p(std::exp(v)); }},
      {UnaryGradOp::kElu, [](double v) { return v > 0 ? v : 1.5 * std::expm1(v); }, 1.5f},
      {UnaryGradOp::kErf, [](double v) { return std::erf(v); }},
      {UnaryGradOp::kLeakyRelu, [](double v) { return v > 0 ? v : 0.125 * v; }, 0.125f},
  };
  for (int64_t n : {1, 3, 17, 513, 70001}) {
    const std::vector<float> x = random_floats(n, 2, 2), dy = random_floats(n, 3);
    for (const Case& each : cases) {
      SCOPED_TRACE(testing::Message() << "gradient " << static_cast<int>(each.op) << " of " << n);
      for_every_run(
          [&] {
            std::vector<float> dx(n);
            unary_grad(each.op, x.data(), dy.data(), dx.data(), n, each.a);
            return dx;
          },
          [&](const std::vector<float>& dx) {
            expect_close(
                dx.data(), n,
                [&](int64_t i) {
                  const double h = std::abs(x[i]) < 1e-5 ? 1e-7 : 1e-5;
                  return dy[i] * (each.f(x[i] + h) - each.f(x[i] - h)) / (2 * h);
                },
                2e-6, 2e-6);
          });
    }
  }
}

TEST(Pointwise, BinaryOverEveryOperandPattern) {
  for (int64_t rows : {1, 3, 65}) {
    for (int64_t cols : {1, 17, 513, 2100}) {
      const std::vector<float> a = random_floats(rows * cols, 4), b = random_floats(rows * cols, 5);
      for (int left = 0; left < 4; ++left) {
        for (int right = 0; right < 4; ++right) {
          const auto operand = [&](const std::vector<float>& data, int pattern) {
            return Operand{data.data(),
                           pattern == 0   ? cols
                           : pattern == 1 ? 0
                           : pattern == 2 ? 1
                                          : 0,
                           pattern < 2 ? 1 : 0};
          };
          const Operand x = operand(a, left), y = operand(b, right);
          const auto at = [&](const Operand& o, int64_t i) {
            return static_cast<double>(o.data[i / cols * o.row_stride + i % cols * o.col_stride]);
          };
          for_every_run(
              [&] {
                std::vector<float> z(4 * rows * cols);
                binary(BinaryOp::kSub, rows, cols, x, y, z.data());
                binary(BinaryOp::kMax, rows, cols, x, y, z.data() + rows * cols);
                std::vector<uint8_t> less(rows * cols);
                compare(CompareOp::kLess, rows, cols, x, y, less.data());
                for (int64_t i = 0; i < rows * cols; ++i) z[2 * rows * cols + i] = less[i];
                select(rows, cols, {less.data(), cols, 1}, x, y, z.data() + 3 * rows * cols);
                return z;
              },
              [&](const std::vector<float>& z) {
                for (int64_t i = 0; i < rows * cols; ++i) {
                  ASSERT_EQ(z[i], static_cast<float>(at(x, i)) - static_cast<float>(at(y, i)));
                  ASSERT_EQ(z[rows * cols + i], std::max(at(x, i), at(y, i)));
                  ASSERT_EQ(z[2 * rows * cols + i], at(x, i) < at(y, i));
                  ASSERT_EQ(z[3 * rows * cols + i], std::min(at(x, i), at(y, i)));
                }
              });
        }
      }
    }
  }
}

TEST(Pointwise, MaximumHandsOnNaN) {
  const std::vector<float> a = {kNaN, 1, kNaN, 2}, b = {1, kNaN, kNaN, 3};
  std::vector<float> y(4);
  for (Isa each : runnable_isas()) {
    limit_isa(each);
    for (BinaryOp op : {BinaryOp::kMax, BinaryOp::kMin}) {
      binary(op, 1, 4, {a.data(), 4, 1}, {b.data(), 4, 1}, y.data());
      EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]) && std::isnan(y[2]) && !std::isnan(y[3]));
    }
  }
}

TEST(Pointwise, PowersByScalarExponents) {
  const std::vector<float> x = {0.0f, 0.5f, 2.0f, 7.0f, 1e-3f, 123.0f, 0.25f, 9.0f, 3.0f};
  for (float exponent : {2.0f, 0.5f, -0.5f, -1.0f, 1.0f, 3.0f, 2.5f, 0.0f}) {
    for_every_run(
        [&] {
          std::vector<float> y(x.size());
          binary(BinaryOp::kPow, 1, y.size(), {x.data(), 0, 1}, {&exponent, 0, 0}, y.data());
          return y;
        },
        [&](const std::vector<float>& y) {
          expect_close(
              y.data(), y.size(), [&](int64_t i) { return std::pow(double{x[i]}, double{exponent}); }, 3e-7, 0);
        });
  }
}

}  // namespace
}  // namespace lowtide::cpu
