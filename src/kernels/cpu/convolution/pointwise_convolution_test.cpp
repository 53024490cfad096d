#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

constexpr int64_t kImages = 3, kIn = 37, kOut = 50;

struct PointwiseConvolutionCase {
  int64_t height, width, down, right;
  bool has_bias;

  int64_t y_height() const { return (height - 1) / down + 1; }
  int64_t y_width() const { return (width - 1) / right + 1; }
  int64_t of_x() const { return kImages * kIn * height * width; }
  int64_t of_y() const { return kImages * kOut * y_height() * y_width(); }
};
constexpr PointwiseConvolutionCase kPointwiseConvolutionCases[] = {
    {5, 4, 1, 1, false}, {7, 9, 1, 1, true}, {7, 6, 2, 2, true}, {5, 8, 1, 3, false}, {31, 40, 2, 1, true}};

TensorRef image(const void* data, DType dtype, int64_t channels, int64_t height, int64_t width) {
  return tensor(data, dtype, {kImages, channels, height, width},
                {channels * height * width, 1, width * channels, channels});
}

// y, dx, dw, db, one after another.
template <class Number>
std::vector<Number> run_all(const PointwiseConvolutionCase& c, const std::string& provider, const std::string& ending,
                            DType dtype, const std::vector<Number>& x, const std::vector<Number>& dy,
                            const std::vector<Number>& w, const std::vector<Number>& bias) {
  const BoundAttrs attrs{{"strides", std::vector<int64_t>{c.down, c.right}},
                         {"pads", std::vector<int64_t>{0, 0, 0, 0}},
                         {"dilations", std::vector<int64_t>{1, 1}},
                         {"kernel_shape", std::vector<int64_t>{1, 1}},
                         {"group", int64_t{1}}};
  std::vector<Number> found(c.of_y() + c.of_x() + kOut * kIn + (c.has_bias ? kOut : 0), Number(-1));
  Number *y = found.data(), *dx = y + c.of_y(), *dw = dx + c.of_x(), *db = dw + kOut * kIn;
  const TensorRef of_x = image(x.data(), dtype, kIn, c.height, c.width),
                  of_w = tensor(w.data(), dtype, {kOut, kIn, 1, 1}),
                  of_dy = image(dy.data(), dtype, kOut, c.y_height(), c.y_width());
  EXPECT_EQ(
      run_kernel(provider + ".Conv" + ending, {of_x, of_w, tensor(c.has_bias ? bias.data() : nullptr, dtype, {kOut})},
                 {image(y, dtype, kOut, c.y_height(), c.y_width())}, attrs),
      nullptr);
  EXPECT_EQ(run_kernel(provider + ".ConvGrad" + ending, {of_dy, of_x, of_w},
                       {image(dx, dtype, kIn, c.height, c.width), tensor(dw, dtype, {kOut, kIn, 1, 1}),
                        tensor(c.has_bias ? db : nullptr, dtype, {kOut})},
                       attrs),
            nullptr);
  return found;
}

// Against the reference; 16 bits against the reference in f32, rounded.
TEST(PointwiseConvolution, AgreesWithTheReference) {
  for (const PointwiseConvolutionCase& c : kPointwiseConvolutionCases) {
    SCOPED_TRACE(testing::Message() << c.height << " x " << c.width << " by " << c.down << ", " << c.right);
    const std::vector<float> x = random_floats(c.of_x(), 1), dy = random_floats(c.of_y(), 2),
                             w = random_floats(kOut * kIn, 3), bias = random_floats(kOut, 4);
    const std::vector<float> wanted = run_all(c, "reference", "", DType::kF32, x, dy, w, bias);
    for_every_run([&] { return run_all(c, "cpu", ".pointwise", DType::kF32, x, dy, w, bias); },
                  [&](const std::vector<float>& found) {
                    expect_close(found.data(), found.size(), [&](int64_t i) { return wanted[i]; }, 1e-5, 1e-4);
                  });
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const auto half_x = halves(dtype, x), half_dy = halves(dtype, dy), half_w = halves(dtype, w),
                 half_bias = halves(dtype, bias);
      const std::vector<float> of_halves =
          run_all(c, "reference", "", DType::kF32, widened(dtype, half_x), widened(dtype, half_dy),
                  widened(dtype, half_w), widened(dtype, half_bias));
      const std::string ending = dtype == DType::kBF16 ? ".pointwise.bf16" : ".pointwise.f16";
      for_every_run([&] { return run_all(c, "cpu", ending, dtype, half_x, half_dy, half_w, half_bias); },
                    [&](const std::vector<uint16_t>& found) {
                      const std::vector<float> wide = widened(dtype, found);
                      const double unit = dtype == DType::kBF16 ? 1.0 / 128 : 1.0 / 1024;
                      expect_close(wide.data(), wide.size(), [&](int64_t i) { return of_halves[i]; }, unit, unit / 8);
                    });
    }
  }
}

}  // namespace
}  // namespace lowtide::cpu
