#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

struct Case {
  int64_t images, channels, outputs, groups, height, width, window_height, window_width, down, right, top, left, bottom,
      end, dilation;
  bool has_bias = false;

  int64_t y_height() const { return (height + top + bottom - dilation * (window_height - 1) - 1) / down + 1; }
  int64_t y_width() const { return (width + left + end - dilation * (window_width - 1) - 1) / right + 1; }
  int64_t of_x() const { return images * channels * height * width; }
  int64_t of_y() const { return images * outputs * y_height() * y_width(); }
  int64_t of_w() const { return outputs * channels / groups * window_height * window_width; }
  std::vector<int64_t> window() const { return {outputs, channels / groups, window_height, window_width}; }
};
constexpr Case kCases[] = {
    {2, 64, 40, 1, 14, 13, 3, 3, 1, 1, 1, 1, 1, 1, 1, true},   // as ResNet's
    {3, 19, 35, 1, 9, 11, 3, 3, 2, 2, 1, 1, 1, 1, 1},          // strided
    {1, 70, 7, 1, 6, 5, 5, 5, 1, 1, 2, 2, 2, 2, 1, true},      // several parts of the depth, few columns
    {2, 20, 300, 1, 4, 5, 2, 2, 1, 1, 0, 0, 1, 1, 1, true},    // several blocks of columns, padded by one side more
    {2, 36, 54, 3, 7, 8, 3, 3, 1, 2, 1, 1, 1, 1, 1, true},     // groups
    {1, 16, 16, 1, 12, 10, 3, 2, 2, 3, 4, 4, 4, 4, 3, false},  // dilated; windows in the pad alone
    {2, 18, 20, 1, 11, 9, 2, 2, 3, 4, 0, 0, 0, 0, 1, true},    // places that no window meets
    {1, 17, 33, 1, 2, 2, 6, 6, 1, 1, 3, 3, 3, 3, 1, false},    // larger than the image
    {2, 70, 200, 1, 13, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1, true},  // by tiles of 2 x 2 places, as the next ones
    {3, 300, 33, 1, 8, 8, 3, 3, 1, 1, 0, 2, 2, 0, 1},          // two parts of the depth, windows beyond one side
    {9, 96, 64, 2, 7, 7, 3, 3, 1, 1, 1, 1, 1, 1, 1, true},     // groups, and places that only half of a tile has
    {5, 40, 210, 1, 8, 9, 1, 3, 1, 1, 0, 1, 0, 1, 1, true},    // more places and rows than go at once
};

TensorRef image(const float* data, const Case& c, int64_t channels, int64_t height, int64_t width) {
  return floats(data, {c.images, channels, height, width}, {channels * height * width, 1, width * channels, channels});
}

BoundAttrs attrs_of(const Case& c) {
  return {{"strides", std::vector<int64_t>{c.down, c.right}},
          {"pads", std::vector<int64_t>{c.top, c.left, c.bottom, c.end}},
          {"dilations", std::vector<int64_t>{c.dilation, c.dilation}},
          {"group", c.groups}};
}

struct Operands {
  explicit Operands(const Case& c)
      : x(random_floats(c.of_x(), 1)),
        w(random_floats(c.of_w(), 2)),
        bias(random_floats(c.outputs, 3)),
        dy(random_floats(c.of_y(), 4)) {}
  std::vector<float> x, w, bias, dy;
};

std::vector<float> convolve(const Case& c, const std::string& kernel, const Operands& of) {
  std::vector<float> y(c.of_y(), -1);
  EXPECT_EQ(run_kernel(kernel,
                       {image(of.x.data(), c, c.channels, c.height, c.width), floats(of.w.data(), c.window()),
                        floats(c.has_bias ? of.bias.data() : nullptr, {c.outputs})},
                       {image(y.data(), c, c.outputs, c.y_height(), c.y_width())}, attrs_of(c)),
            nullptr);
  return y;
}

// dx, dw, db, one after another; those of `wanted` alone.
std::vector<float> differentiate(const Case& c, const std::string& kernel, const Operands& of, int wanted = 7) {
  std::vector<float> found(c.of_x() + c.of_w() + c.outputs, -1);
  float *dx = found.data(), *dw = dx + c.of_x(), *db = dw + c.of_w();
  EXPECT_EQ(run_kernel(kernel,
                       {image(of.dy.data(), c, c.outputs, c.y_height(), c.y_width()),
                        image(of.x.data(), c, c.channels, c.height, c.width), floats(of.w.data(), c.window())},
                       {image(wanted & 1 ? dx : nullptr, c, c.channels, c.height, c.width),
                        floats(wanted & 2 ? dw : nullptr, c.window()), floats(wanted & 4 ? db : nullptr, {c.outputs})},
                       attrs_of(c)),
            nullptr);
  return found;
}

void expect_as_reference(const std::vector<float>& wanted, const std::vector<float>& found) {
  expect_close(found.data(), found.size(), [&](int64_t i) { return wanted[i]; }, 1e-5, 2e-4);
}

TEST(WindowConvolution, AgreesWithTheReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.channels << " to " << c.outputs << " channels, window " << c.window_height
                                    << " x " << c.window_width);
    const Operands of(c);
    const std::vector<float> y = convolve(c, "reference.Conv", of), grads = differentiate(c, "reference.ConvGrad", of);
    for_every_run([&] { return convolve(c, "cpu.Conv.windows", of); },
                  [&](const std::vector<float>& found) { expect_as_reference(y, found); });
    for_every_run([&] { return differentiate(c, "cpu.ConvGrad.windows", of); },
                  [&](const std::vector<float>& found) { expect_as_reference(grads, found); });
  }
}

TEST(WindowConvolution, WritesWhatIsWantedAlone) {
  const Case& c = kCases[1];
  const Operands of(c);
  const std::vector<float> all = differentiate(c, "cpu.ConvGrad.windows", of);
  const int64_t ends[] = {0, c.of_x(), c.of_x() + c.of_w(), static_cast<int64_t>(all.size())};
  for (int wanted = 1; wanted < 8; ++wanted) {
    const std::vector<float> found = differentiate(c, "cpu.ConvGrad.windows", of, wanted);
    for (int part = 0; part < 3; ++part)
      for (int64_t i = ends[part]; i < ends[part + 1]; ++i)
        ASSERT_EQ(found[i], (wanted >> part & 1) ? all[i] : -1) << "part " << part << ", number " << i;
  }
}

// What lies beyond an image is zero, also beside infinities: nothing multiplies them by it.
TEST(WindowConvolution, InfinitiesStayWhereTheyAre) {
  const Case& c = kCases[0];
  Operands of(c);
  of.x[0] = INFINITY;
  const std::vector<float> y = convolve(c, "cpu.Conv.windows", of), wanted = convolve(c, "reference.Conv", of);
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(std::isfinite(y[i]), std::isfinite(wanted[i])) << i;
}

}  // namespace
}  // namespace lowtide::cpu
