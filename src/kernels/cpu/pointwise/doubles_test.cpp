#include <cmath>
#include <limits>

#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// All magnitudes, both signs, and what is special.
std::vector<double> doubles_of_all_sizes(int64_t n, double most) {
  std::vector<double> x = {0.0,
                           -0.0,
                           kInfinite,
                           -kInfinite,
                           NAN,
                           1e-320,
                           -1e-320,
                           745.2,
                           -745.1,
                           709.7,
                           -708.5,
                           1e300,
                           1.5707963267948966,
                           3.141592653589793,
                           -1570796.3267948965,
                           1.4999999e6,
                           355.0,
                           103993.0};
  const std::vector<float> random = random_floats(2 * n, 5);
  for (int64_t i = 0; i < n; ++i)
    x.push_back(std::ldexp(random[2 * i], static_cast<int>(12 * random[2 * i + 1])) * most);
  return x;
}

TEST(Doubles, AreWithinFewUlpOfTheReference) {
  struct Case {
    std::string op;
    double most;
    double ulps;
    BoundAttrs attrs = {};
  };
  const Case cases[] = {
      {"Sin", 100, 4},    {"Cos", 100, 4}, {"Exp", 30, 4},   {"Tanh", 1, 8},
      {"Sigmoid", 10, 4}, {"Relu", 1, 0},  {"Swish", 10, 4}, {"Softplus", 4, 4, {{"beta", 1.0}, {"threshold", 20.0}}},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.op);
    const std::vector<double> x = doubles_of_all_sizes(4099, each.most);
    const int64_t n = static_cast<int64_t>(x.size());
    const auto run = [&](const std::string& kernel) {
      std::vector<double> y(n);
      EXPECT_EQ(
          run_kernel(kernel, {tensor(x.data(), DType::kF64, {n})}, {tensor(y.data(), DType::kF64, {n})}, each.attrs),
          nullptr);
      return y;
    };
    const std::vector<double> wanted = run("reference." + each.op);
    for_every_run([&] { return run("cpu." + each.op + ".f64"); },
                  [&](const std::vector<double>& found) {
                    for (int64_t i = 0; i < n; ++i) {
                      if (std::isnan(wanted[i])) {
                        EXPECT_TRUE(std::isnan(found[i])) << "of " << x[i];
                        continue;
                      }
                      EXPECT_EQ(std::signbit(found[i]), std::signbit(wanted[i])) << "of " << x[i];
                      if (found[i] == wanted[i]) continue;
                      // Where exp(-x) overflows, the reciprocal of what is infinite.
                      const double tiny = each.op == "Exp" ? 5e-324 : 1e-305;
                      const double ulp = std::numeric_limits<double>::epsilon() * std::abs(wanted[i]);
                      EXPECT_LE(std::abs(found[i] - wanted[i]), each.ulps * ulp + tiny) << "of " << x[i];
                    }
                  });
  }
}

TEST(Doubles, PairsOfEveryAdvanceAreTheReferences) {
  const auto doubles = [](int64_t n, uint64_t seed) {
    const std::vector<float> random = random_floats(n, seed);
    return std::vector<double>(random.begin(), random.end());
  };
  constexpr int64_t kRows = 5, kCols = 1031;
  const std::vector<double> whole = doubles(kRows * kCols, 1), row = doubles(kCols, 2), column = doubles(kRows, 3);
  const TensorRef operands[] = {
      tensor(whole.data(), DType::kF64, {kRows, kCols}), tensor(row.data(), DType::kF64, {kCols}),
      tensor(column.data(), DType::kF64, {kRows, 1}), tensor(whole.data(), DType::kF64, {kRows, kCols}, {1, kRows})};
  for (const std::string op : {"Add", "Sub", "Mul", "Div", "ReluGrad", "TanhGrad", "SigmoidGrad", "SwishGrad"}) {
    for (const TensorRef& a : operands) {
      for (const TensorRef& b : operands) {
        if (a.rank < 2 || a.sizes[1] == 1 || (op.size() > 3 && b.sizes[1] != kCols)) continue;
        SCOPED_TRACE(op);
        const auto run = [&](const std::string& kernel) {
          std::vector<double> y(kRows * kCols);
          EXPECT_EQ(run_kernel(kernel, {a, b}, {tensor(y.data(), DType::kF64, {kRows, kCols})}, {}), nullptr);
          return y;
        };
        const std::vector<double> wanted = run("reference." + op);
        for_every_run([&] { return run("cpu." + op + ".f64"); },
                      [&](const std::vector<double>& found) {
                        for (size_t i = 0; i < found.size(); ++i)
                          ASSERT_NEAR(found[i], wanted[i], 1e-15 * (1 + std::abs(wanted[i])));
                      });
      }
    }
  }
}

TEST(Doubles, ComparisonsAreTheReferences) {
  std::vector<double> x = doubles_of_all_sizes(1500, 1), y = x;
  for (size_t i = 0; i < y.size(); i += 3) y[i] = -y[i];
  const int64_t n = static_cast<int64_t>(x.size());
  for (const std::string op : {"Equal", "NotEqual", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}) {
    for (const int64_t others : {n, int64_t{1}}) {
      SCOPED_TRACE(testing::Message() << op << " with " << others);
      const auto run = [&](const std::string& kernel) {
        std::vector<uint8_t> found(n, 7);
        EXPECT_EQ(run_kernel(kernel, {tensor(x.data(), DType::kF64, {n}), tensor(y.data(), DType::kF64, {others})},
                             {tensor(found.data(), DType::kBool, {n})}, {}),
                  nullptr);
        return found;
      };
      EXPECT_EQ(run("cpu." + op + ".f64"), run("reference." + op));
    }
  }
}

TEST(Doubles, FastGeluIsTheReferences) {
  const std::vector<double> x = doubles_of_all_sizes(4099, 4), dy(x.size(), 0.7);
  const int64_t n = static_cast<int64_t>(x.size());
  const TensorRef of_x = tensor(x.data(), DType::kF64, {n}), of_dy = tensor(dy.data(), DType::kF64, {n});
  for (const bool grad : {false, true}) {
    const auto run = [&](const std::string& kernel) {
      std::vector<double> y(n);
      const TensorRef to = tensor(y.data(), DType::kF64, {n});
      EXPECT_EQ(grad ? run_kernel(kernel, {of_dy, of_x}, {to}, {}) : run_kernel(kernel, {of_x}, {to}, {}), nullptr);
      return y;
    };
    const std::string op = grad ? "FastGeluGrad" : "FastGelu";
    const std::vector<double> wanted = run("reference." + op);
    for_every_run([&] { return run("cpu." + op + ".f64"); },
                  [&](const std::vector<double>& found) {
                    for (int64_t i = 0; i < n; ++i)
                      EXPECT_TRUE(found[i] == wanted[i] || std::isnan(wanted[i]) ||
                                  std::abs(found[i] - wanted[i]) <= 1e-15 * (1 + std::abs(x[i])))
                          << found[i] << " for " << wanted[i] << " of " << x[i];
                  });
  }
}

}  // namespace
}  // namespace lowtide::cpu
