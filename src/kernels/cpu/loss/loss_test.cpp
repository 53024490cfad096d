#include <array>
#include <cmath>

#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

BoundAttrs attrs_of(const std::string& reduction, double smoothing, int64_t ignore_index = -100) {
  return {{"reduction", reduction}, {"label_smoothing", smoothing}, {"ignore_index", ignore_index}};
}

KernelStatus loss_of(const std::vector<float>& x, const std::vector<int64_t>& labels, float* loss, float* lse,
                     const BoundAttrs& attrs) {
  const int64_t rows = static_cast<int64_t>(labels.size()), classes = static_cast<int64_t>(x.size()) / rows;
  const bool whole = attrs.s("reduction") != "none";
  return run_kernel("cpu.SoftmaxCrossEntropyLoss", {floats(x.data(), {rows, classes}), integers(labels)},
                    {whole ? floats(loss, {}) : floats(loss, {rows}), floats(lse, {rows})}, attrs);
}

KernelStatus grad_of(const float* dloss, const float* x, const std::vector<int64_t>& labels, const float* lse,
                     float* dx, int64_t classes, const BoundAttrs& attrs) {
  const int64_t rows = static_cast<int64_t>(labels.size());
  const bool whole = attrs.s("reduction") != "none";
  return run_kernel("cpu.SoftmaxCrossEntropyLossGrad",
                    {whole ? floats(dloss, {}) : floats(dloss, {rows}), floats(x, {rows, classes}), integers(labels),
                     floats(lse, {rows})},
                    {floats(dx, {rows, classes})}, attrs);
}

TEST(CrossEntropy, LossAndGradient) {
  for (int64_t classes : {1, 3, 17, 513, 1025, 50257}) {
    for (float smoothing : {0.0f, 0.1f}) {
      SCOPED_TRACE(testing::Message() << classes << " classes, smoothing " << smoothing);
      const int64_t rows = 5, n = rows * classes;
      const std::vector<float> x = random_floats(n, 1, 3), row_grad = random_floats(rows, 2);
      std::vector<int64_t> labels = {0, classes - 1, -100, classes / 2, 0};
      const BoundAttrs attrs = attrs_of("none", smoothing);
      for_every_run(
          [&] {
            std::vector<float> out(2 * rows + 2 * n);
            float *loss = out.data(), *lse = loss + rows, *dx = lse + rows, *in_place = dx + n;
            loss_of(x, labels, loss, lse, attrs);
            grad_of(row_grad.data(), x.data(), labels, lse, dx, classes, attrs);
            std::copy(x.begin(), x.end(), in_place);
            grad_of(row_grad.data(), in_place, labels, lse, in_place, classes, attrs);
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
                    return ignored ? 0 : row_grad[r] * (std::exp(row[c] - exact) - target);
                  },
                  3e-6, 1e-6);
            }
          });
    }
  }
}

// Images, [N, classes, positions], are as rows of what each position has; in 16 bits rounded once.
TEST(CrossEntropy, ImagesAreAsTheirPixelsInRows) {
  for (const auto& [images, classes, inner] : {std::array<int64_t, 3>{2, 3, 5}, {3, 20, 700}, {1, 300, 2100}}) {
    for (const std::string reduction : {"mean", "none"}) {
      SCOPED_TRACE(testing::Message() << images << " x " << classes << " x " << inner << " " << reduction);
      const int64_t rows = images * inner, n = rows * classes;
      const std::vector<uint16_t> stored = halves(DType::kBF16, random_floats(n, 1, 3));
      const std::vector<float> x = widened(DType::kBF16, stored), dloss = random_floats(rows, 2);
      std::vector<int64_t> labels(rows);
      for (int64_t r = 0; r < rows; ++r) labels[r] = r % 7 == 3 ? -100 : r * 5 % classes;
      std::vector<float> as_rows(n);
      const auto pixel = [&](int64_t row, int64_t c) { return (row / inner * classes + c) * inner + row % inner; };
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < classes; ++c) as_rows[r * classes + c] = x[pixel(r, c)];
      const BoundAttrs attrs = attrs_of(reduction, 0.1);
      std::vector<float> loss(rows), lse(rows), dx(n), wanted(n);
      loss_of(as_rows, labels, loss.data(), lse.data(), attrs);
      grad_of(dloss.data(), as_rows.data(), labels, lse.data(), dx.data(), classes, attrs);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < classes; ++c) wanted[pixel(r, c)] = dx[r * classes + c];

      const std::vector<int64_t> sizes = {images, classes, inner}, positions = {images, inner};
      const bool whole = reduction != "none";
      const TensorRef at = tensor(labels.data(), DType::kI64, positions);
      const auto of_rows = [&](const float* data) { return whole ? floats(data, {}) : floats(data, positions); };
      const auto run = [&](DType dtype, const void* logits, float* found_loss, float* found_lse, void* found_dx) {
        EXPECT_EQ(run_kernel("cpu.SoftmaxCrossEntropyLoss.pixels", {tensor(logits, dtype, sizes), at},
                             {of_rows(found_loss), floats(found_lse, positions)}, attrs),
                  nullptr);
        EXPECT_EQ(run_kernel("cpu.SoftmaxCrossEntropyLossGrad.pixels",
                             {of_rows(dloss.data()), tensor(logits, dtype, sizes), at, floats(found_lse, positions)},
                             {tensor(found_dx, dtype, sizes)}, attrs),
                  nullptr);
      };
      for_every_run(
          [&] {
            std::vector<float> found(2 * rows + n);
            run(DType::kF32, x.data(), found.data(), found.data() + rows, found.data() + 2 * rows);
            return found;
          },
          [&](const std::vector<float>& found) {
            expect_close(found.data(), whole ? 1 : rows, [&](int64_t i) { return loss[i]; }, 1e-6, 1e-6);
            expect_close(found.data() + rows, rows, [&](int64_t i) { return lse[i]; }, 1e-6, 1e-6);
            expect_close(found.data() + 2 * rows, n, [&](int64_t i) { return wanted[i]; }, 1e-6, 1e-6);
          });
      std::vector<uint16_t> short_dx(n);
      std::vector<float> found_loss(rows), found_lse(rows), wide_loss(rows), wide_dx(n);
      run(DType::kBF16, stored.data(), found_loss.data(), found_lse.data(), short_dx.data());
      run(DType::kF32, x.data(), wide_loss.data(), found_lse.data(), wide_dx.data());
      EXPECT_EQ(found_loss, wide_loss);
      EXPECT_EQ(short_dx, halves(DType::kBF16, wide_dx));
    }
  }
}

TEST(CrossEntropy, ReductionsSkipIgnoredRows) {
  const std::vector<float> x = random_floats(12, 1);
  const std::vector<int64_t> labels = {0, 1, -100, 2}, none(4, -100);
  std::vector<float> each(4), lse(4), dx(12), row_dx(12);
  loss_of(x, labels, each.data(), lse.data(), attrs_of("none", 0));
  EXPECT_EQ(each[2], 0);
  const double sum = double{each[0]} + each[1] + each[3];
  float loss = 0;
  loss_of(x, labels, &loss, lse.data(), attrs_of("sum", 0));
  EXPECT_EQ(loss, static_cast<float>(sum));
  loss_of(x, labels, &loss, lse.data(), attrs_of("mean", 0));
  EXPECT_EQ(loss, static_cast<float>(sum / 3));
  const std::vector<float> dloss(4, 6.0f), thirds(4, 2.0f);
  grad_of(dloss.data(), x.data(), labels, lse.data(), dx.data(), 3, attrs_of("mean", 0));
  grad_of(thirds.data(), x.data(), labels, lse.data(), row_dx.data(), 3, attrs_of("none", 0));
  EXPECT_EQ(dx, row_dx);
  loss_of(x, none, &loss, lse.data(), attrs_of("mean", 0));
  EXPECT_TRUE(std::isnan(loss));
}

TEST(CrossEntropy, OfDoublesIsTheReferences) {
  for (const int64_t classes : {1, 3, 17, 513}) {
    for (const std::string reduction : {"none", "sum", "mean"}) {
      SCOPED_TRACE(testing::Message() << classes << " classes, " << reduction);
      const std::vector<int64_t> labels = {0, classes - 1, -100, classes / 2, 0};
      const int64_t rows = static_cast<int64_t>(labels.size()), n = rows * classes;
      const std::vector<float> random = random_floats(n, 1, 3), random_grad = random_floats(rows, 2);
      const std::vector<double> x(random.begin(), random.end()), dloss(random_grad.begin(), random_grad.end());
      const BoundAttrs attrs = attrs_of(reduction, 0);
      const auto run = [&](const std::string& provider, const std::string& end) {
        std::vector<double> out(2 * rows + n);
        const auto doubles = [](const double* data, const std::vector<int64_t>& sizes) {
          return tensor(data, DType::kF64, sizes);
        };
        const std::vector<int64_t> reduced = reduction == "none" ? std::vector<int64_t>{rows} : std::vector<int64_t>{};
        const TensorRef logits = doubles(x.data(), {rows, classes}), lse = doubles(&out[rows], {rows});
        EXPECT_EQ(run_kernel(provider + ".SoftmaxCrossEntropyLoss" + end, {logits, integers(labels)},
                             {doubles(&out[0], reduced), lse}, attrs),
                  nullptr);
        EXPECT_EQ(run_kernel(provider + ".SoftmaxCrossEntropyLossGrad" + end,
                             {doubles(dloss.data(), reduced), logits, integers(labels), lse},
                             {doubles(&out[2 * rows], {rows, classes})}, attrs),
                  nullptr);
        return out;
      };
      const std::vector<double> wanted = run("reference", "");
      for_every_run([&] { return run("cpu", ".f64"); },
                    [&](const std::vector<double>& found) {
                      for (size_t i = 0; i < found.size(); ++i)
                        ASSERT_NEAR(found[i], wanted[i], 1e-14 * (1 + std::abs(wanted[i]))) << i;
                    });
    }
  }
}

TEST(CrossEntropy, LabelsOutOfRangeAreRefusedBeforeAnythingIsWritten) {
  const std::vector<float> x = random_floats(12, 1);
  std::vector<float> lse(4), loss(4, 7), dx(12, 7);
  const auto refused = [&](const std::vector<int64_t>& labels, int64_t ignore_index) {
    std::fill(loss.begin(), loss.end(), 7.0f);
    std::fill(dx.begin(), dx.end(), 7.0f);
    const BoundAttrs attrs = attrs_of("none", 0, ignore_index);
    const bool forward = loss_of(x, labels, loss.data(), lse.data(), attrs) != nullptr;
    const bool backward = grad_of(loss.data(), x.data(), labels, lse.data(), dx.data(), 3, attrs) != nullptr;
    EXPECT_EQ(forward, backward);
    return forward && loss == std::vector<float>(4, 7) && dx == std::vector<float>(12, 7);
  };
  EXPECT_FALSE(refused({0, 2, 1, 0}, -100));
  EXPECT_TRUE(refused({0, 2, 3, 1}, -100));
  EXPECT_TRUE(refused({0, 2, 1, -1}, -100));
  EXPECT_FALSE(refused({0, 2, 1, -1}, -1));
}

}  // namespace
}  // namespace lowtide::cpu
