#include <cmath>

#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

// More channels than one task takes.
constexpr int64_t kWindowsBatch = 2, kChannels = 70, kHeight = 7, kWidth = 6;

struct WindowsCase {
  int64_t kernel[2], strides[2], pads[4], dilations[2];
};
constexpr WindowsCase kWindowsCases[] = {
    {{2, 2}, {2, 2}, {0, 0, 0, 0}, {1, 1}},
    {{3, 2}, {1, 2}, {1, 0, 1, 1}, {1, 1}},
    {{2, 3}, {2, 1}, {1, 1, 0, 1}, {2, 2}},
};

struct Pool : WindowsCase {
  int64_t height, width;  // of the output
  explicit Pool(const WindowsCase& c) : WindowsCase(c), height(size(0, kHeight)), width(size(1, kWidth)) {}
  int64_t size(int dim, int64_t in) const {
    return (in + pads[dim] + pads[dim + 2] - dilations[dim] * (kernel[dim] - 1) - 1) / strides[dim] + 1;
  }
  int64_t numel() const { return kWindowsBatch * kChannels * height * width; }
  BoundAttrs attrs() const {
    BoundAttrs attrs;
    attrs.set("kernel_shape", std::vector<int64_t>(kernel, kernel + 2));
    attrs.set("strides", std::vector<int64_t>(strides, strides + 2));
    attrs.set("pads", std::vector<int64_t>(pads, pads + 4));
    attrs.set("dilations", std::vector<int64_t>(dilations, dilations + 2));
    return attrs;
  }
  // body(row, column) for what output (i, j) covers of the image.
  template <class Body>
  void for_each_tap(int64_t i, int64_t j, Body body) const {
    for (int64_t k = 0; k < kernel[0]; ++k)
      for (int64_t l = 0; l < kernel[1]; ++l) {
        const int64_t h = i * strides[0] - pads[0] + k * dilations[0];
        const int64_t w = j * strides[1] - pads[1] + l * dilations[1];
        if (h >= 0 && h < kHeight && w >= 0 && w < kWidth) body(h, w);
      }
  }
};

// Images in row-major order, or with their channels last. Values are asked for by [plane = n C + c, row, column].
struct WindowsLayout {
  bool channels_last;
  std::vector<int64_t> strides(int64_t height, int64_t width) const {
    if (channels_last) return {height * width * kChannels, 1, width * kChannels, kChannels};
    return {kChannels * height * width, height * width, width, 1};
  }
  int64_t at(int64_t plane, int64_t h, int64_t w, int64_t height, int64_t width) const {
    const std::vector<int64_t> s = strides(height, width);
    return plane / kChannels * s[0] + plane % kChannels * s[1] + h * s[2] + w * s[3];
  }
  TensorRef image(const void* data, DType dtype, int64_t height, int64_t width) const {
    return tensor(data, dtype, {kWindowsBatch, kChannels, height, width}, strides(height, width));
  }
};
constexpr int64_t kPlanes = kWindowsBatch * kChannels, kNumel = kPlanes * kHeight * kWidth;

// check(pool, layout) for every case in both layouts.
template <class Check>
void for_each_case(Check check) {
  for (const WindowsCase& c : kWindowsCases) {
    for (const bool channels_last : {false, true}) {
      SCOPED_TRACE(testing::Message() << "kernel " << c.kernel[0] << " x " << c.kernel[1] << " channels last "
                                      << channels_last);
      check(Pool(c), WindowsLayout{channels_last});
    }
  }
}

TEST(Windows, MaxPoolFindsTheLargestAndItsPlaceAndTheGradientGoesThere) {
  for_each_case([](const Pool& pool, const WindowsLayout& layout) {
    std::vector<float> x = random_floats(kNumel, 1);
    x[3] = NAN;
    const std::vector<float> dy = random_floats(pool.numel(), 2);
    std::vector<float> y(pool.numel()), dx(kNumel);
    std::vector<int64_t> places(pool.numel());
    for (int64_t plane = 0; plane < kPlanes; ++plane)
      for (int64_t i = 0; i < pool.height; ++i)
        for (int64_t j = 0; j < pool.width; ++j) {
          const int64_t to = layout.at(plane, i, j, pool.height, pool.width);
          float best = -INFINITY;
          pool.for_each_tap(i, j, [&](int64_t h, int64_t w) {
            const float value = x[layout.at(plane, h, w, kHeight, kWidth)];
            if (!(value > best) && value == value) return;
            best = value;
            places[to] = h * kWidth + w;
          });
          y[to] = best;
          dx[layout.at(plane, places[to] / kWidth, places[to] % kWidth, kHeight, kWidth)] += dy[to];
        }
    const BoundAttrs attrs = pool.attrs();
    const auto image = [&](const void* data, DType dtype = DType::kF32) {
      return layout.image(data, dtype, pool.height, pool.width);
    };
    for_every_run(
        [&] {
          std::vector<float> found(pool.numel(), NAN);
          std::vector<int64_t> found_at(pool.numel(), -1);
          EXPECT_EQ(run_kernel("cpu.MaxPool", {layout.image(x.data(), DType::kF32, kHeight, kWidth)},
                               {image(found.data()), image(found_at.data(), DType::kI64)}, attrs),
                    nullptr);
          EXPECT_EQ(found_at, places);
          std::vector<float> alone(pool.numel(), NAN);
          EXPECT_EQ(run_kernel("cpu.MaxPool", {layout.image(x.data(), DType::kF32, kHeight, kWidth)},
                               {image(alone.data()), {}}, attrs),
                    nullptr);
          EXPECT_EQ(std::memcmp(alone.data(), found.data(), found.size() * sizeof(float)), 0);  // NaNs among them
          return found;
        },
        [&](const std::vector<float>& found) {
          expect_close(found.data(), pool.numel(), [&](int64_t i) { return y[i]; }, 0, 0);
        });
    for_every_run(
        [&] {
          std::vector<float> found(kNumel, NAN);
          EXPECT_EQ(run_kernel("cpu.MaxPoolGrad", {image(dy.data()), image(places.data(), DType::kI64)},
                               {layout.image(found.data(), DType::kF32, kHeight, kWidth)}, attrs),
                    nullptr);
          return found;
        },
        [&](const std::vector<float>& found) {
          expect_close(found.data(), kNumel, [&](int64_t i) { return dx[i]; }, 1e-6, 1e-6);
        });
  });
}

// The bits of indices into the image, also of the reference.
TEST(Windows, PlacesInWindowsAreAsGoodAsIndices) {
  for_each_case([](const Pool& pool, const WindowsLayout& layout) {
    std::vector<float> x = random_floats(kNumel, 1);
    x[3] = NAN;
    const std::vector<float> dy = random_floats(pool.numel(), 2);
    const auto image = [&](const void* data, DType dtype = DType::kF32) {
      return layout.image(data, dtype, pool.height, pool.width);
    };
    const TensorRef of_x = layout.image(x.data(), DType::kF32, kHeight, kWidth);
    const auto run = [&](const std::string& provider, bool offsets, std::vector<uint8_t>& bytes) {
      std::vector<float> y(pool.numel()), dx(kNumel);
      std::vector<int64_t> indices(pool.numel());
      const TensorRef places = offsets ? image(bytes.data(), DType::kU8) : image(indices.data(), DType::kI64);
      BoundAttrs forward = pool.attrs(), backward;
      if (offsets) {
        forward.set("offsets", true);
        backward = pool.attrs();
        backward.set("shape", std::vector<int64_t>{kWindowsBatch, kChannels, kHeight, kWidth});
      }
      EXPECT_EQ(run_kernel(provider + ".MaxPool", {of_x}, {image(y.data()), places}, forward), nullptr);
      const std::string gradient = provider + ".MaxPoolGrad" + (offsets && provider == "cpu" ? ".offsets" : "");
      EXPECT_EQ(run_kernel(gradient, {image(dy.data()), places},
                           {layout.image(dx.data(), DType::kF32, kHeight, kWidth)}, backward),
                nullptr);
      y.insert(y.end(), dx.begin(), dx.end());
      return y;
    };
    std::vector<uint8_t> none, ours(pool.numel(), 255), reference(pool.numel(), 255);
    for (const bool is_reference : {false, true}) {
      const std::string provider = is_reference ? "reference" : "cpu";
      std::vector<uint8_t>& bytes = is_reference ? reference : ours;
      const std::vector<float> wanted = run(provider, false, none), found = run(provider, true, bytes);
      EXPECT_EQ(std::memcmp(found.data(), wanted.data(), wanted.size() * sizeof(float)), 0) << provider;
      for (uint8_t each : bytes) ASSERT_LT(each, pool.kernel[0] * pool.kernel[1]);
    }
    EXPECT_EQ(ours, reference);
    // What no pool gives is an error and nothing worse.
    ours[5] = 255;
    std::vector<float> dx(kNumel);
    BoundAttrs attrs = pool.attrs();
    attrs.set("shape", std::vector<int64_t>{kWindowsBatch, kChannels, kHeight, kWidth});
    for (const char* kernel : {"cpu.MaxPoolGrad.offsets", "reference.MaxPoolGrad"})
      EXPECT_STREQ(run_kernel(kernel, {image(dy.data()), image(ours.data(), DType::kU8)},
                              {layout.image(dx.data(), DType::kF32, kHeight, kWidth)}, attrs),
                   "MaxPoolGrad: an index is out of range");
  });
}

TEST(Windows, AveragePoolDividesByWhatItCoversAndItsGradientIsShared) {
  for_each_case([](const Pool& pool, const WindowsLayout& layout) {
    if (pool.dilations[0] != 1) return;  // PyTorch's have none
    for (const bool include_pad : {false, true}) {
      const std::vector<float> x = random_floats(kNumel, 3), dy = random_floats(pool.numel(), 4);
      std::vector<double> y(pool.numel()), dx(kNumel);
      for (int64_t plane = 0; plane < kPlanes; ++plane)
        for (int64_t i = 0; i < pool.height; ++i)
          for (int64_t j = 0; j < pool.width; ++j) {
            const int64_t to = layout.at(plane, i, j, pool.height, pool.width);
            // The pads count, but not what a window reaches past them.
            const int64_t top = i * pool.strides[0] - pool.pads[0], left = j * pool.strides[1] - pool.pads[1];
            const int64_t below = std::min(top + pool.kernel[0], kHeight + pool.pads[2]),
                          right = std::min(left + pool.kernel[1], kWidth + pool.pads[3]);
            int64_t inside = 0;
            pool.for_each_tap(i, j, [&](int64_t, int64_t) { ++inside; });
            const double count = include_pad ? (below - top) * (right - left) : inside;
            pool.for_each_tap(i, j, [&](int64_t h, int64_t w) {
              const int64_t from = layout.at(plane, h, w, kHeight, kWidth);
              y[to] += x[from] / count;
              dx[from] += dy[to] / count;
            });
          }
      BoundAttrs attrs = pool.attrs();
      attrs.set("count_include_pad", include_pad);
      for_every_run(
          [&] {
            std::vector<float> found(pool.numel() + kNumel, NAN);
            float* found_dx = found.data() + pool.numel();
            const auto small = [&](const float* data) {
              return layout.image(data, DType::kF32, pool.height, pool.width);
            };
            const auto large = [&](const float* data) { return layout.image(data, DType::kF32, kHeight, kWidth); };
            EXPECT_EQ(run_kernel("cpu.AveragePool", {large(x.data())}, {small(found.data())}, attrs), nullptr);
            EXPECT_EQ(run_kernel("cpu.AveragePoolGrad", {small(dy.data())}, {large(found_dx)}, attrs), nullptr);
            return found;
          },
          [&](const std::vector<float>& found) {
            expect_close(found.data(), pool.numel(), [&](int64_t i) { return y[i]; }, 1e-5, 1e-6);
            expect_close(found.data() + pool.numel(), kNumel, [&](int64_t i) { return dx[i]; }, 1e-5, 1e-6);
          });
    }
  });
}

// What is stored in half the bytes is summed as f32 and rounded once: the bits of f32, rounded.
TEST(Windows, HalvesAreF32RoundedOnce) {
  for_each_case([](const Pool& pool, const WindowsLayout& layout) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const std::vector<uint16_t> x = halves(dtype, random_floats(kNumel, 5)),
                                  dy = halves(dtype, random_floats(pool.numel(), 6));
      const auto run = [&](const char* op, const void* from, void* to, std::vector<int64_t>& places, DType stored) {
        const TensorRef large = layout.image(from, stored, kHeight, kWidth),
                        small = layout.image(to, stored, pool.height, pool.width),
                        indices = layout.image(places.data(), DType::kI64, pool.height, pool.width),
                        gradient = layout.image(from, stored, pool.height, pool.width),
                        summed = layout.image(to, stored, kHeight, kWidth);
        BoundAttrs attrs = pool.attrs();
        attrs.set("count_include_pad", true);
        const std::string name = op;
        if (name == "cpu.MaxPool") return run_kernel(op, {large}, {small, indices}, attrs);
        if (name == "cpu.AveragePool") return run_kernel(op, {large}, {small}, attrs);
        if (name == "cpu.MaxPoolGrad") return run_kernel(op, {gradient, indices}, {summed}, attrs);
        return run_kernel(op, {gradient}, {summed}, attrs);
      };
      std::vector<int64_t> places(pool.numel()), same(pool.numel());
      for (const char* op : {"cpu.MaxPool", "cpu.MaxPoolGrad", "cpu.AveragePool", "cpu.AveragePoolGrad"}) {
        SCOPED_TRACE(op);
        const bool averages = std::string_view(op).starts_with("cpu.Average");
        if (averages && pool.dilations[0] != 1) continue;
        const std::vector<uint16_t>& from = std::string_view(op).ends_with("Grad") ? dy : x;
        const std::vector<float> from_floats = widened(dtype, from);
        std::vector<float> wanted(kNumel + pool.numel());
        std::vector<uint16_t> found(wanted.size());
        EXPECT_EQ(run(op, from_floats.data(), wanted.data(), places, DType::kF32), nullptr);
        EXPECT_EQ(run(op, from.data(), found.data(), same, dtype), nullptr);
        EXPECT_EQ(found, halves(dtype, wanted));
        EXPECT_EQ(same, places);
      }
    }
  });
}

TEST(Windows, APlaceOutsideOfTheImageIsRefused) {
  const Pool pool(kWindowsCases[0]);
  const WindowsLayout layout{false};
  const std::vector<float> dy(pool.numel());
  std::vector<int64_t> places(pool.numel());
  places[5] = kHeight * kWidth;
  std::vector<float> dx(kNumel);
  EXPECT_STREQ(run_kernel("cpu.MaxPoolGrad",
                          {layout.image(dy.data(), DType::kF32, pool.height, pool.width),
                           layout.image(places.data(), DType::kI64, pool.height, pool.width)},
                          {layout.image(dx.data(), DType::kF32, kHeight, kWidth)}, pool.attrs()),
               "MaxPoolGrad: an index is out of range");
}

}  // namespace
}  // namespace lowtide::cpu
