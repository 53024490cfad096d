#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

// Of [2, 3, sizes…]; one or three spatial dims.
struct VolumesCase {
  std::vector<int64_t> sizes, kernel, strides, pads, dilations;
};
const VolumesCase kVolumesCases[] = {
    {{4, 6, 8}, {2, 2, 2}, {2, 2, 2}, {0, 0, 0, 0, 0, 0}, {1, 1, 1}},
    {{5, 4, 7}, {3, 2, 3}, {1, 2, 2}, {1, 0, 1, 1, 1, 1}, {1, 1, 1}},
    {{6, 5, 7}, {2, 2, 3}, {2, 1, 1}, {0, 1, 1, 1, 0, 0}, {2, 1, 2}},
    {{1, 2, 600}, {1, 2, 3}, {1, 1, 2}, {0, 0, 1, 0, 0, 1}, {1, 1, 1}},
    {{601}, {3}, {2}, {1, 1}, {1}},
};

TEST(Volumes, ArePooledAsByTheReference) {
  for (const VolumesCase& c : kVolumesCases) {
    for (const bool include_pad : {false, true}) {
      SCOPED_TRACE(testing::Message() << testing::PrintToString(c.kernel) << " of " << testing::PrintToString(c.sizes));
      const size_t spatial = c.sizes.size();
      const bool averages = c.dilations[0] == 1;  // PyTorch's have no dilations
      std::vector<int64_t> large = {2, 3}, small = {2, 3};
      int64_t numel = 6, made = 6;
      for (size_t i = 0; i < spatial; ++i) {
        const int64_t reach = c.dilations[i] * (c.kernel[i] - 1) + 1;
        large.push_back(c.sizes[i]);
        small.push_back((c.sizes[i] + c.pads[i] + c.pads[spatial + i] - reach) / c.strides[i] + 1);
        numel *= large.back();
        made *= small.back();
      }
      BoundAttrs attrs;
      attrs.set("kernel_shape", c.kernel);
      attrs.set("strides", c.strides);
      attrs.set("pads", c.pads);
      attrs.set("dilations", c.dilations);
      attrs.set("count_include_pad", include_pad);
      std::vector<int64_t> places(made);
      // y and dx of both pools, one after the other.
      const auto run = [&]<class T>(const std::string& provider, DType dtype, const std::vector<T>& x,
                                    const std::vector<T>& dy) {
        const std::string end = provider == "cpu" ? ".volumes" : "";
        std::vector<T> out(2 * (made + numel));
        const auto image = [&](const T* data) { return tensor(data, dtype, large); };
        const auto pooled = [&](const T* data) { return tensor(data, dtype, small); };
        const TensorRef at = tensor(places.data(), DType::kI64, small);
        EXPECT_EQ(run_kernel(provider + ".MaxPool" + end, {image(x.data())}, {pooled(out.data()), at}, attrs), nullptr);
        std::vector<T> alone(made);
        EXPECT_EQ(run_kernel(provider + ".MaxPool" + end, {image(x.data())}, {pooled(alone.data()), {}}, attrs),
                  nullptr);
        EXPECT_EQ(std::memcmp(alone.data(), out.data(), made * sizeof(T)), 0);  // NaNs among them
        EXPECT_EQ(run_kernel(provider + ".MaxPoolGrad" + end, {pooled(dy.data()), at}, {image(&out[made])}, attrs),
                  nullptr);
        if (!averages) return out;
        T* next = &out[made + numel];
        EXPECT_EQ(run_kernel(provider + ".AveragePool" + end, {image(x.data())}, {pooled(next)}, attrs), nullptr);
        EXPECT_EQ(run_kernel(provider + ".AveragePoolGrad" + end, {pooled(dy.data())}, {image(next + made)}, attrs),
                  nullptr);
        return out;
      };
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        std::vector<float> values = random_floats(numel, 1);
        values[7] = NAN;
        std::fill_n(values.begin() + 20, 8, -INFINITY);
        const std::vector<uint16_t> short_x = halves(dtype, values), short_dy = halves(dtype, random_floats(made, 2));
        const std::vector<float> x = widened(dtype, short_x), dy = widened(dtype, short_dy);
        const std::vector<float> wanted = run("reference", DType::kF32, x, dy);
        const std::vector<int64_t> wanted_places = places;
        std::vector<float> last;
        for_every_run(
            [&] {
              std::fill(places.begin(), places.end(), -7);
              last = run("cpu", DType::kF32, x, dy);
              EXPECT_EQ(places, wanted_places);
              return last;
            },
            [&](const std::vector<float>& found) {
              expect_close(found.data(), found.size(), [&](int64_t i) { return wanted[i]; }, 1e-5, 1e-5);
            });
        EXPECT_EQ(run("cpu", dtype, short_x, short_dy), halves(dtype, last));  // one rounding
        EXPECT_EQ(places, wanted_places);
      }
    }
  }
}

TEST(Volumes, APlaceOutsideOfTheVolumeIsRefused) {
  const std::vector<float> dy(2);
  std::vector<float> dx(8);
  const std::vector<int64_t> places = {0, 8};
  EXPECT_STREQ(run_kernel("cpu.MaxPoolGrad.volumes",
                          {floats(dy.data(), {1, 1, 1, 1, 2}), tensor(places.data(), DType::kI64, {1, 1, 1, 1, 2})},
                          {floats(dx.data(), {1, 1, 2, 2, 2})}, {}),
               "MaxPoolGrad: an index is out of range");
}

}  // namespace
}  // namespace lowtide::cpu
