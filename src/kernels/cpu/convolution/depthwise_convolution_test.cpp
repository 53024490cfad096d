#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

struct DepthwiseConvolutionCase {
  int64_t images, channels, height, width, window_height, window_width, down, right, top, left, bottom, end, dilation;

  int64_t y_height() const { return (height + top + bottom - dilation * (window_height - 1) - 1) / down + 1; }
  int64_t y_width() const { return (width + left + end - dilation * (window_width - 1) - 1) / right + 1; }
  int64_t of_x() const { return images * channels * height * width; }
  int64_t of_y() const { return images * channels * y_height() * y_width(); }
  int64_t of_w() const { return channels * window_height * window_width; }
};
constexpr DepthwiseConvolutionCase kDepthwiseConvolutionCases[] = {
    {3, 37, 20, 31, 7, 7, 1, 1, 3, 3, 3, 3, 1},  // as ConvNeXt's
    {2, 64, 17, 40, 3, 3, 2, 2, 1, 1, 1, 1, 1},  // as MobileNet's
    {9, 5, 6, 5, 5, 5, 2, 2, 1, 2, 2, 1, 1},     // padded by one side more; more images than parts
    {1, 33, 9, 50, 1, 9, 1, 3, 0, 0, 0, 0, 1},   // places that no window meets
    {2, 16, 12, 30, 3, 2, 1, 1, 4, 4, 4, 4, 2},  // dilated; windows in the pad alone
    {1, 100, 4, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1},  {1, 3, 2, 2, 11, 8, 1, 1, 5, 4, 5, 4, 1},  // larger than the image
};

TensorRef image(const void* data, DType dtype, const DepthwiseConvolutionCase& c, int64_t height, int64_t width) {
  return tensor(data, dtype, {c.images, c.channels, height, width},
                {c.channels * height * width, 1, width * c.channels, c.channels});
}

// dx, dw, db, one after another; those of `wanted` alone.
template <class Number>
std::vector<Number> run(const DepthwiseConvolutionCase& c, const std::string& kernel, DType dtype,
                        const std::vector<Number>& dy, const std::vector<Number>& x, const std::vector<Number>& w,
                        int wanted = 7) {
  const BoundAttrs attrs{{"strides", std::vector<int64_t>{c.down, c.right}},
                         {"pads", std::vector<int64_t>{c.top, c.left, c.bottom, c.end}},
                         {"dilations", std::vector<int64_t>{c.dilation, c.dilation}},
                         {"group", c.channels}};
  std::vector<Number> found(c.of_x() + c.of_w() + c.channels, Number(-1));
  Number *dx = found.data(), *dw = dx + c.of_x(), *db = dw + c.of_w();
  const std::vector<int64_t> window = {c.channels, 1, c.window_height, c.window_width};
  EXPECT_EQ(run_kernel(kernel,
                       {image(dy.data(), dtype, c, c.y_height(), c.y_width()),
                        image(x.data(), dtype, c, c.height, c.width), tensor(w.data(), dtype, window)},
                       {image(wanted & 1 ? dx : nullptr, dtype, c, c.height, c.width),
                        tensor(wanted & 2 ? dw : nullptr, dtype, window),
                        tensor(wanted & 4 ? db : nullptr, dtype, {c.channels})},
                       attrs),
            nullptr);
  return found;
}

TEST(DepthwiseConvolution, GradientsAgreeWithTheReference) {
  for (const DepthwiseConvolutionCase& c : kDepthwiseConvolutionCases) {
    SCOPED_TRACE(testing::Message() << c.height << " x " << c.width << ", window " << c.window_height << " x "
                                    << c.window_width);
    const std::vector<float> dy = random_floats(c.of_y(), 1), x = random_floats(c.of_x(), 2),
                             w = random_floats(c.of_w(), 3);
    const std::vector<float> wanted = run(c, "reference.ConvGrad", DType::kF32, dy, x, w);
    for_every_run([&] { return run(c, "cpu.ConvGrad.depthwise", DType::kF32, dy, x, w); },
                  [&](const std::vector<float>& found) {
                    expect_close(found.data(), found.size(), [&](int64_t i) { return wanted[i]; }, 1e-5, 1e-4);
                  });
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const auto half_dy = halves(dtype, dy), half_x = halves(dtype, x), half_w = halves(dtype, w);
      const std::vector<float> of_halves = run(c, "reference.ConvGrad", DType::kF32, widened(dtype, half_dy),
                                               widened(dtype, half_x), widened(dtype, half_w));
      for_every_run([&] { return run(c, "cpu.ConvGrad.depthwise", dtype, half_dy, half_x, half_w); },
                    [&](const std::vector<uint16_t>& found) {
                      const std::vector<float> wide = widened(dtype, found);
                      const double unit = dtype == DType::kBF16 ? 1.0 / 128 : 1.0 / 1024;
                      expect_close(wide.data(), wide.size(), [&](int64_t i) { return of_halves[i]; }, unit, unit / 8);
                    });
    }
  }
}

TEST(DepthwiseConvolution, WritesWhatIsWantedAlone) {
  const DepthwiseConvolutionCase& c = kDepthwiseConvolutionCases[1];
  const std::vector<float> dy = random_floats(c.of_y(), 1), x = random_floats(c.of_x(), 2),
                           w = random_floats(c.of_w(), 3),
                           all = run(c, "cpu.ConvGrad.depthwise", DType::kF32, dy, x, w);
  const int64_t ends[] = {0, c.of_x(), c.of_x() + c.of_w(), static_cast<int64_t>(all.size())};
  for (int wanted = 1; wanted < 8; ++wanted) {
    const std::vector<float> found = run(c, "cpu.ConvGrad.depthwise", DType::kF32, dy, x, w, wanted);
    for (int part = 0; part < 3; ++part)
      for (int64_t i = ends[part]; i < ends[part + 1]; ++i)
        ASSERT_EQ(found[i], (wanted >> part & 1) ? all[i] : -1) << "part " << part << ", number " << i;
  }
}

}  // namespace
}  // namespace lowtide::cpu
