#include <cmath>
#include <limits>

#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

constexpr float kPointwiseInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Every 40,009th float of all, with the ends.
std::vector<float> all_floats() {
  std::vector<float> values = {0.0f,   -0.0f,   kPointwiseInf, -kPointwiseInf, kNaN,
                               1e-45f, -1e-45f, 3.4028235e38f, -3.4028235e38f, 1.0f};
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 40009) {
    float value;
    const uint32_t word = static_cast<uint32_t>(bits);
    std::memcpy(&value, &word, 4);
    values.push_back(value);
  }
  return values;
}

struct UnaryCase {
  std::string op;
  double (*exact)(double);
  double relative;
  double absolute = 1.2e-38;  // results below the normal range may be flushed
  BoundAttrs attrs = {};
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double mish(double x) { return x * std::tanh(x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x))); }
double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

void check_unary(const UnaryCase& each, const std::vector<float>& x) {
  SCOPED_TRACE(each.op);
  const int64_t n = static_cast<int64_t>(x.size());
  for_every_run(
      [&] {
        std::vector<float> y(x.size());
        run_kernel("cpu." + each.op, {floats(x.data(), {n})}, {floats(y.data(), {n})}, each.attrs);
        return y;
      },
      [&](const std::vector<float>& y) {
        expect_close(
            y.data(), y.size(), [&](int64_t i) { return static_cast<float>(each.exact(x[i])); }, each.relative,
            each.absolute);
      });
}

const BoundAttrs kQuick{{"alpha", static_cast<double>(1.702f)}};

TEST(Pointwise, VectorMathIsWithinFiveInTenMillionEverywhere) {
  const std::vector<float> x = all_floats();
  check_unary({"Exp", [](double v) { return std::exp(v); }, 3e-7, 1.5e-45}, x);
  check_unary({"Log", [](double v) { return std::log(v); }, 3e-7}, x);
  check_unary({"Tanh", [](double v) { return std::tanh(v); }, 3e-7}, x);
  check_unary({"Erf", [](double v) { return std::erf(v); }, 3e-7}, x);
  check_unary({"Sigmoid", sigmoid, 4e-7}, x);
  check_unary({"Sin", [](double v) { return std::sin(v); }, 3e-7}, x);
  check_unary({"Cos", [](double v) { return std::cos(v); }, 3e-7}, x);
  check_unary({"Sqrt", [](double v) { return std::sqrt(v); }, 1e-7, 0}, x);
  check_unary({"Rsqrt", [](double v) { return 1 / std::sqrt(v); }, 2e-7}, x);
  check_unary({"Reciprocal", [](double v) { return 1 / v; }, 1e-7}, x);
  check_unary({"Floor", [](double v) { return std::floor(v); }, 0, 0}, x);
  check_unary({"Ceil", [](double v) { return std::ceil(v); }, 0, 0}, x);
  check_unary({"Round", [](double v) { return std::nearbyint(v); }, 0, 0}, x);
  check_unary({"Abs", [](double v) { return std::abs(v); }, 0, 0}, x);
  check_unary({"Neg", [](double v) { return -v; }, 0, 0}, x);
  check_unary({"Relu", [](double v) { return v != v ? v : std::max(v, 0.0); }, 0, 0}, x);
  check_unary({"Sign", [](double v) { return static_cast<double>((v > 0) - (v < 0)); }, 0, 0}, x);
  check_unary({"Mish", mish, 5e-7, 1.1e-36}, x);
  check_unary({"Softplus",
               [](double v) { return v > 50 ? v : std::log1p(std::exp(v)); },
               4e-7,
               1.2e-38,
               {{"beta", 1.0}, {"threshold", 20.0}}},
              x);
}

TEST(Pointwise, ActivationsNearTheOrigin) {
  std::vector<float> x = random_floats(100003, 1, 3);
  check_unary({"Gelu", [](double v) { return v * normal_cdf(v); }, 4e-7, 1e-6}, x);
  check_unary(
      {"FastGelu", [](double v) { return v / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))); },
       4e-7, 1e-6},
      x);
  check_unary({"Swish", [](double v) { return v * sigmoid(v); }, 4e-7}, x);
  check_unary({"QuickGelu", [](double v) { return v * sigmoid(1.702 * v); }, 2e-6, 1e-6, kQuick}, x);
  check_unary({"Elu",
               [](double v) { return 1.25 * (v > 0 ? v : 1.5 * std::expm1(v)); },
               5e-7,
               0,
               {{"alpha", 1.5}, {"scale", 1.25}, {"input_scale", 1.0}}},
              x);
  check_unary({"HardSwish", [](double v) { return v * std::min(1.0, std::max(0.0, v / 6 + 0.5)); }, 3e-7, 1e-6}, x);
  check_unary({"Clip", [](double v) { return std::min(1.0, std::max(-0.5, v)); }, 0, 0, {{"min", -0.5}, {"max", 1.0}}},
              x);
}

TEST(Pointwise, GradientsAreTheSlopes) {
  struct Case {
    std::string op;
    double (*f)(double);
    BoundAttrs attrs = {};
  };
  const Case cases[] = {
      {"GeluGrad", [](double v) { return v * normal_cdf(v); }},
      {"FastGeluGrad",
       [](double v) { return v / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))); }},
      {"SwishGrad", [](double v) { return v * sigmoid(v); }},
      {"MishGrad", mish},
      {"QuickGeluGrad", [](double v) { return v * sigmoid(static_cast<double>(1.702f) * v); }, kQuick},
  };
  for (int64_t n : {1, 3, 17, 513, 70001}) {
    const std::vector<float> x = random_floats(n, 2, 2), dy = random_floats(n, 3);
    for (const Case& each : cases) {
      SCOPED_TRACE(testing::Message() << each.op << " of " << n);
      for_every_run(
          [&] {
            std::vector<float> dx(n);
            run_kernel("cpu." + each.op, {floats(dy.data(), {n}), floats(x.data(), {n})}, {floats(dx.data(), {n})},
                       each.attrs);
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
          // A matrix, a row repeated, a column repeated, a scalar.
          const auto operand = [&](const std::vector<float>& data, int pattern) {
            return floats(data.data(), {rows, cols}, {pattern == 0 ? cols : pattern == 2 ? 1 : 0, pattern < 2 ? 1 : 0});
          };
          const TensorRef x = operand(a, left), y = operand(b, right);
          const auto at = [&](const TensorRef& o, int64_t i) {
            return static_cast<double>(o.as<float>()[i / cols * o.strides[0] + i % cols * o.strides[1]]);
          };
          for_every_run(
              [&] {
                std::vector<float> z(4 * rows * cols);
                std::vector<uint8_t> less(rows * cols);
                const TensorRef condition = tensor(less.data(), DType::kBool, {rows, cols});
                const auto part = [&](int64_t i) { return floats(z.data() + i * rows * cols, {rows, cols}); };
                run_kernel("cpu.Sub", {x, y}, {part(0)}, {});
                run_kernel("cpu.Max", {x, y}, {part(1)}, {});
                run_kernel("cpu.Less", {x, y}, {condition}, {});
                for (int64_t i = 0; i < rows * cols; ++i) z[2 * rows * cols + i] = less[i];
                run_kernel("cpu.Where", {condition, x, y}, {part(3)}, {});
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
    for (const char* kernel : {"cpu.Max", "cpu.Min"}) {
      run_kernel(kernel, {floats(a.data(), {4}), floats(b.data(), {4})}, {floats(y.data(), {4})}, {});
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
          run_kernel("cpu.Pow", {floats(x.data(), {9}), floats(&exponent, {})}, {floats(y.data(), {9})}, {});
          return y;
        },
        [&](const std::vector<float>& y) {
          expect_close(
              y.data(), y.size(), [&](int64_t i) { return std::pow(double{x[i]}, double{exponent}); }, 3e-7, 0);
        });
  }
}

// A multiplication would make a quiet NaN of a signalling one.
TEST(Pointwise, AProductWithOneInPlaceTouchesNothing) {
  const std::vector<uint32_t> before = {0x7fa00001, 0x3f800000, 0x80000000, 0x00000001};
  const float one = 1, two = 2;
  const auto times = [&](const float& factor, bool in_place) {
    std::vector<uint32_t> x = before, y(4);
    const auto as_floats = [](std::vector<uint32_t>& bits) {
      return floats(reinterpret_cast<const float*>(bits.data()), {4});
    };
    run_kernel("cpu.Mul", {as_floats(x), floats(&factor, {})}, {as_floats(in_place ? x : y)}, {});
    return in_place ? x : y;
  };
  EXPECT_EQ(times(one, true), before);
  EXPECT_EQ(times(one, false)[1], before[1]);
  EXPECT_EQ(times(two, true)[1], 0x40000000u);
}

// Of rows, and of a column and a row that are broadcast.
TEST(Pointwise, BoolsAreJoined) {
  const std::vector<uint8_t> a = {0, 0, 1, 1, 1, 0}, b = {0, 1, 0, 1, 0, 0};
  const auto bools = [](const std::vector<uint8_t>& data, std::vector<int64_t> sizes) {
    return tensor(data.data(), DType::kBool, sizes);
  };
  std::vector<uint8_t> y(6), of_both(4);
  run_kernel("cpu.And", {bools(a, {2, 3}), bools(b, {2, 3})}, {bools(y, {2, 3})}, {});
  EXPECT_EQ(y, (std::vector<uint8_t>{0, 0, 0, 1, 0, 0}));
  run_kernel("cpu.Or", {bools(a, {2, 3}), bools(b, {2, 3})}, {bools(y, {2, 3})}, {});
  EXPECT_EQ(y, (std::vector<uint8_t>{0, 1, 1, 1, 1, 0}));
  const std::vector<uint8_t> column = {0, 1}, row = {1, 0};
  run_kernel("cpu.And", {bools(column, {2, 1}), bools(row, {1, 2})}, {bools(of_both, {2, 2})}, {});
  EXPECT_EQ(of_both, (std::vector<uint8_t>{0, 0, 1, 0}));
}

// The ends of the range, a number that is repeated on either side, and steps.
TEST(Pointwise, IntegersAreComparedAsTheReferenceDoes) {
  constexpr int64_t kRows = 3, kCols = 700;
  const auto check = [&]<class T>(T, DType dtype) {
    std::vector<T> a(2 * kRows * kCols), b(kRows * kCols);
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<T>(i % 7) - 3;
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<T>(i % 5) - 2;
    a[1] = b[3] = std::numeric_limits<T>::max();
    a[3] = b[1] = std::numeric_limits<T>::min();
    TensorRef apart = tensor(a.data(), dtype, {kRows, kCols}), turned = tensor(b.data(), dtype, {kCols, kRows});
    apart.strides[0] = 2 * kCols;
    apart.strides[1] = 2;
    std::swap(turned.strides[0], turned.strides[1]);
    std::swap(turned.sizes[0], turned.sizes[1]);
    const TensorRef whole = tensor(a.data(), dtype, {kRows, kCols}), row = tensor(b.data(), dtype, {kCols});
    const TensorRef one = tensor(b.data() + 4, dtype, {1});
    const std::vector<std::vector<TensorRef>> cases = {{whole, tensor(b.data(), dtype, {kRows, kCols})},
                                                       {whole, row},
                                                       {whole, one},
                                                       {one, whole},
                                                       {apart, whole},
                                                       {whole, turned}};
    for (const std::string op : {"Equal", "NotEqual", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}) {
      for (size_t i = 0; i < cases.size(); ++i) {
        SCOPED_TRACE(testing::Message() << op << " case " << i);
        std::vector<uint8_t> wanted(kRows * kCols, 7), found(kRows * kCols, 9);
        EXPECT_EQ(run_kernel("reference." + op, cases[i], {tensor(wanted.data(), DType::kBool, {kRows, kCols})}, {}),
                  nullptr);
        EXPECT_EQ(
            run_kernel("cpu." + op + ".integers", cases[i], {tensor(found.data(), DType::kBool, {kRows, kCols})}, {}),
            nullptr);
        EXPECT_EQ(found, wanted);
      }
    }
  };
  check(int64_t{}, DType::kI64);
  check(int32_t{}, DType::kI32);
}

}  // namespace
}  // namespace lowtide::cpu
