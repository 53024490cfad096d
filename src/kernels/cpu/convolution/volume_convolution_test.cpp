#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

struct VolumeCase {
  int64_t volumes, channels, outputs;
  std::array<int64_t, 3> size, window, pads, dilations;
  bool has_bias = false;

  int64_t y_size(size_t d) const { return size[d] + 2 * pads[d] - dilations[d] * (window[d] - 1); }
  std::vector<int64_t> x_shape() const { return {volumes, channels, size[0], size[1], size[2]}; }
  std::vector<int64_t> y_shape() const { return {volumes, outputs, y_size(0), y_size(1), y_size(2)}; }
  std::vector<int64_t> w_shape() const { return {outputs, channels, window[0], window[1], window[2]}; }
};
constexpr VolumeCase kVolumes[] = {
    {2, 20, 33, {5, 6, 7}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, true},     // all slices at once
    {1, 33, 40, {9, 46, 41}, {2, 3, 2}, {1, 1, 1}, {1, 1, 1}, true},   // several slabs
    {2, 16, 230, {4, 5, 3}, {1, 3, 3}, {0, 1, 0}, {1, 1, 1}},          // images side by side
    {1, 19, 17, {7, 6, 9}, {3, 1, 2}, {4, 0, 1}, {2, 1, 3}, true},     // slices of the pad alone
    {1, 16, 16, {2, 3, 3}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}},           // a window larger than the volume
    {1, 60, 64, {11, 22, 25}, {2, 1, 2}, {0, 0, 0}, {3, 1, 1}, true},  // slices that lie apart, several slabs
};

int64_t numbers_in(const std::vector<int64_t>& shape) {
  int64_t numbers = 1;
  for (int64_t size : shape) numbers *= size;
  return numbers;
}

struct VolumeOperands {
  explicit VolumeOperands(const VolumeCase& c)
      : x(random_floats(numbers_in(c.x_shape()), 1)),
        w(random_floats(numbers_in(c.w_shape()), 2)),
        bias(random_floats(c.outputs, 3)),
        dy(random_floats(numbers_in(c.y_shape()), 4)) {}
  std::vector<float> x, w, bias, dy;
};

BoundAttrs volume_attrs(const VolumeCase& c) {
  std::vector<int64_t> pads(c.pads.begin(), c.pads.end());
  pads.insert(pads.end(), c.pads.begin(), c.pads.end());
  return {{"strides", std::vector<int64_t>{1, 1, 1}},
          {"pads", pads},
          {"dilations", std::vector<int64_t>(c.dilations.begin(), c.dilations.end())},
          {"group", int64_t{1}}};
}

std::vector<float> convolve_volumes(const VolumeCase& c, const std::string& kernel, const VolumeOperands& of) {
  std::vector<float> y(of.dy.size(), -1);
  EXPECT_EQ(run_kernel(kernel,
                       {floats(of.x.data(), c.x_shape()), floats(of.w.data(), c.w_shape()),
                        floats(c.has_bias ? of.bias.data() : nullptr, {c.outputs})},
                       {floats(y.data(), c.y_shape())}, volume_attrs(c)),
            nullptr);
  return y;
}

// dx, dw, db, one after another; those of `wanted` alone.
std::vector<float> differentiate_volumes(const VolumeCase& c, const std::string& kernel, const VolumeOperands& of,
                                         int wanted = 7) {
  std::vector<float> found(of.x.size() + of.w.size() + of.bias.size(), -1);
  float *dx = found.data(), *dw = dx + of.x.size(), *db = dw + of.w.size();
  EXPECT_EQ(run_kernel(
                kernel,
                {floats(of.dy.data(), c.y_shape()), floats(of.x.data(), c.x_shape()), floats(of.w.data(), c.w_shape())},
                {floats(wanted & 1 ? dx : nullptr, c.x_shape()), floats(wanted & 2 ? dw : nullptr, c.w_shape()),
                 floats(wanted & 4 ? db : nullptr, {c.outputs})},
                volume_attrs(c)),
            nullptr);
  return found;
}

void expect_near_reference(const std::vector<float>& wanted, const std::vector<float>& found) {
  expect_close(found.data(), found.size(), [&](int64_t i) { return wanted[i]; }, 1e-5, 1e-3);
}

TEST(VolumeConvolution, AgreesWithTheReference) {
  for (const VolumeCase& c : kVolumes) {
    SCOPED_TRACE(testing::Message() << c.channels << " to " << c.outputs << " channels, depth " << c.size[0]);
    const VolumeOperands of(c);
    const std::vector<float> y = convolve_volumes(c, "reference.Conv", of),
                             grads = differentiate_volumes(c, "reference.ConvGrad", of);
    for_every_run([&] { return convolve_volumes(c, "cpu.Conv.volumes", of); },
                  [&](const std::vector<float>& found) { expect_near_reference(y, found); });
    for_every_run([&] { return differentiate_volumes(c, "cpu.ConvGrad.volumes", of); },
                  [&](const std::vector<float>& found) { expect_near_reference(grads, found); });
  }
}

TEST(VolumeConvolution, WritesWhatIsWantedAlone) {
  const VolumeCase& c = kVolumes[0];
  const VolumeOperands of(c);
  const std::vector<float> all = differentiate_volumes(c, "cpu.ConvGrad.volumes", of);
  const size_t ends[] = {0, of.x.size(), of.x.size() + of.w.size(), all.size()};
  for (int wanted = 1; wanted < 8; ++wanted) {
    const std::vector<float> found = differentiate_volumes(c, "cpu.ConvGrad.volumes", of, wanted);
    for (int part = 0; part < 3; ++part)
      for (size_t i = ends[part]; i < ends[part + 1]; ++i)
        ASSERT_EQ(found[i], (wanted >> part & 1) ? all[i] : -1) << "part " << part << ", number " << i;
  }
}

}  // namespace
}  // namespace lowtide::cpu
