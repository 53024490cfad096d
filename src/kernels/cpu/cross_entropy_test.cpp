#include "kernels/cpu/cross_entropy.h"

#include <cmath>

#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

TEST(CrossEntropy, LossAndGradient) {
  for (int64_t classes : {1, 3, 17, 513, 1025, 50257}) {
    for (float smoothing : {0.0f, 0.1f}) {
      SCOPED_TRACE(testing::Message() << classes << " classes, smoothing " << smoothing);
      const int64_t rows = 5, n = rows * classes;
      const std::vector<float> x = random_floats(n, 1, 3), row_grad = random_floats(rows, 2);
      std::vector<int64_t> labels = {0, classes - 1, -100, classes / 2, 0};
      const CrossEntropyOptions options{.ignore_index = -100, .label_smoothing = smoothing};
      for_every_run(
          [&] {
            std::vector<float> out(2 * rows + 2 * n);
            float *loss = out.data(), *lse = loss + rows, *dx = lse + rows, *in_place = dx + n;
            cross_entropy(x.data(), labels.data(), options, loss, lse, rows, classes);
            cross_entropy_grad(x.data(), labels.data(), options, lse, row_grad.data(), 0.5f, dx, rows, classes);
            std::copy(x.begin(), x.end(), in_place);
            cross_entropy_grad(in_place, labels.data(), options, lse, row_grad.data(), 0.5f, in_place, rows, classes);
            return out;
          },
          [&](const std::vector<float>& out) {
            const float *loss = out.data(), *lse = loss + rows, *dx = lse + rows, *in_place = dx + n;
            EXPECT_EQ(std::memcmp(dx, in_place, n * sizeof(float)), 0);
            for (int64_t r = 0; r < rows; ++r) {
              const float* row = &x[r * classes];
              double top = row[0], total = 0, mean = 0;
              for (int64_t c = 0; c < classes; ++c) top = std::max<double>(top, row[c]);
              for (int64_t c = 0; c < classes; ++c) {
                total += std::exp(row[c] - top);
                mean += row[c] / double(classes);
              }
              const double exact = top + std::log(total);
              const bool ignored = labels[r] == -100;
              expect_close(&lse[r], 1, [&](int64_t) { return exact; }, 3e-7, 1e-6);
              expect_close(
                  &loss[r], 1,
                  [&](int64_t) {
                    return ignored ? 0 : (1 - smoothing) * (exact - row[labels[r]]) + smoothing * (exact - mean);
                  },
                  1e-6, 3e-6);
              expect_close(
                  dx + r * classes, classes,
                  [&](int64_t c) {
                    const double target = (c == labels[r] ? 1 - smoothing : 0) + double{smoothing} / classes;
                    return ignored ? 0 : 0.5 * row_grad[r] * (std::exp(row[c] - exact) - target);
                  },
                  3e-6, 1e-6);
            }
          });
    }
  }
}

TEST(CrossEntropy, ReductionsSkipIgnoredRows) {
  const std::vector<float> losses = {1, 2, 0, 4};
  const std::vector<int64_t> labels = {0, 1, -100, 2}, none(4, -100);
  EXPECT_EQ(reduce_loss(LossReduction::kSum, losses.data(), labels.data(), -100, 4), 7);
  EXPECT_EQ(reduce_loss(LossReduction::kMean, losses.data(), labels.data(), -100, 4), static_cast<float>(7.0 / 3));
  const std::vector<float> zeros(4);
  EXPECT_TRUE(std::isnan(reduce_loss(LossReduction::kMean, zeros.data(), none.data(), -100, 4)));
}

TEST(CrossEntropy, LabelsOutOfRangeAreFoundAndTouchNothing) {
  const std::vector<int64_t> labels = {0, 2, 3, -1};
  EXPECT_EQ(first_bad_label(labels.data(), 2, 3, -100), -1);
  EXPECT_EQ(first_bad_label(labels.data(), 4, 3, -100), 2);
  EXPECT_EQ(first_bad_label(labels.data() + 3, 1, 3, -1), -1);
  std::vector<float> x = random_floats(12, 1), lse(4), loss(4), dx(12, 1.0f);
  cross_entropy(x.data(), labels.data(), {}, loss.data(), lse.data(), 4, 3);
  cross_entropy_grad(x.data(), labels.data(), {}, lse.data(), nullptr, 1, dx.data(), 4, 3);
  EXPECT_EQ(loss[2], 0);
  EXPECT_EQ(dx[6], 0);
}

}  // namespace
}  // namespace lowtide::cpu
