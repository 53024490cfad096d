#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

// Beside the reference; the instruction sets have the same bits.
TEST(DoubleRows, AreTheReferencesWithinFewUlp) {
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  for (const int64_t cols : {1, 3, 7, 8, 17, 513, 1030}) {
    constexpr int64_t kRows = 7;
    SCOPED_TRACE(testing::Message() << cols << " columns");
    const int64_t n = kRows * cols;
    const std::vector<float> random = random_floats(n, 1, 3), of_dy = random_floats(n, 2);
    std::vector<double> x(random.begin(), random.end());
    const std::vector<double> dy(of_dy.begin(), of_dy.end());
    if (cols > 1) x[0] = kLowest;
    std::fill_n(x.begin() + cols, cols, kLowest);
    x[2 * cols + cols / 2] = NAN;
    x[4 * cols] = 800;
    for (const bool planes : {false, true}) {
      const BoundAttrs attrs{{"axis", int64_t{1}}};
      const auto run = [&](const std::string& provider, const std::string& end) {
        std::vector<double> out(4 * n);
        const auto at = [&](const double* data) {
          return planes ? tensor(data, DType::kF64, {1, kRows, cols}) : tensor(data, DType::kF64, {kRows, cols});
        };
        const auto kernel = [&](const char* op) { return provider + op + end; };
        run_kernel(kernel(".Softmax"), {at(x.data())}, {at(&out[0])}, attrs);
        run_kernel(kernel(".LogSoftmax"), {at(x.data())}, {at(&out[n])}, attrs);
        run_kernel(kernel(".SoftmaxGrad"), {at(dy.data()), at(&out[0])}, {at(&out[2 * n])}, attrs);
        run_kernel(kernel(".LogSoftmaxGrad"), {at(dy.data()), at(&out[n])}, {at(&out[3 * n])}, attrs);
        return out;
      };
      const std::vector<double> wanted = run("reference", "");
      std::vector<double> first;
      for_every_run([&] { return run("cpu", planes ? ".planes_of_f64" : ".f64"); },
                    [&](const std::vector<double>& found) {
                      for (int64_t i = 0; i < 4 * n; ++i) {
                        EXPECT_EQ(std::isnan(found[i]), std::isnan(wanted[i])) << i;
                        if (std::isnan(wanted[i]) || found[i] == wanted[i]) continue;
                        EXPECT_NEAR(found[i], wanted[i], 2e-14 * (1 + std::abs(wanted[i]))) << i;
                      }
                      if (first.empty()) first = found;
                      EXPECT_EQ(std::memcmp(found.data(), first.data(), found.size() * sizeof(double)), 0);
                    });
    }
  }
}

}  // namespace
}  // namespace lowtide::cpu
