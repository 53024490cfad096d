#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

struct MeansCase {
  int64_t large[2], small[2];
};
constexpr MeansCase kMeansCases[] = {{{7, 5}, {3, 2}}, {{3, 4}, {5, 9}}, {{6, 6}, {6, 1}}, {{2, 4500}, {2, 7}}};
constexpr int64_t kMeansBatch = 2, kMeansChannels = 70;

TensorRef image_of(const void* data, DType dtype, const int64_t* size, bool channels_last) {
  const int64_t h = size[0], w = size[1], c = kMeansChannels;
  if (!channels_last) return tensor(data, dtype, {kMeansBatch, c, h, w});
  return tensor(data, dtype, {kMeansBatch, c, h, w}, {c * h * w, 1, w * c, c});
}

// In both layouts, whose bits are the same; halves are the bits of f32, rounded.
TEST(AdaptiveMeans, AgreeWithTheReference) {
  for (const MeansCase& c : kMeansCases) {
    const int64_t planes = kMeansBatch * kMeansChannels, large = planes * c.large[0] * c.large[1],
                  small = planes * c.small[0] * c.small[1];
    BoundAttrs attrs;
    attrs.set("sizes", std::vector<int64_t>(c.small, c.small + 2));
    attrs.set("shape", std::vector<int64_t>{kMeansBatch, kMeansChannels, c.large[0], c.large[1]});
    for (const bool channels_last : {false, true}) {
      SCOPED_TRACE(testing::Message() << "to " << c.small[0] << " x " << c.small[1] << " channels last "
                                      << channels_last);
      const auto run = [&](const std::string& provider, DType dtype, const void* x, const void* dy, void* y, void* dx) {
        const std::string end = provider == "cpu" && !channels_last ? ".rows" : "";
        const auto image = [&](const void* data, const int64_t* size) {
          return image_of(data, dtype, size, channels_last);
        };
        EXPECT_EQ(run_kernel(provider + ".AdaptiveAveragePool" + end, {image(x, c.large)}, {image(y, c.small)}, attrs),
                  nullptr);
        EXPECT_EQ(
            run_kernel(provider + ".AdaptiveAveragePoolGrad" + end, {image(dy, c.small)}, {image(dx, c.large)}, attrs),
            nullptr);
      };
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        const std::vector<uint16_t> short_x = halves(dtype, random_floats(large, 1)),
                                    short_dy = halves(dtype, random_floats(small, 2));
        const std::vector<float> x = widened(dtype, short_x), dy = widened(dtype, short_dy);
        std::vector<float> wanted(small + large);
        run("reference", DType::kF32, x.data(), dy.data(), wanted.data(), wanted.data() + small);
        std::vector<float> last;
        for_every_run(
            [&] {
              std::vector<float> found(small + large, NAN);
              run("cpu", DType::kF32, x.data(), dy.data(), found.data(), found.data() + small);
              return last = found;
            },
            [&](const std::vector<float>& found) {
              expect_close(found.data(), found.size(), [&](int64_t i) { return wanted[i]; }, 1e-4, 1e-5);
            });
        std::vector<uint16_t> short_found(small + large);
        run("cpu", dtype, short_x.data(), short_dy.data(), short_found.data(), short_found.data() + small);
        EXPECT_EQ(short_found, halves(dtype, last));
      }
    }
  }
}

TEST(AdaptiveMeans, HaveTheSameBitsInBothLayouts) {
  for (const MeansCase& c : kMeansCases) {
    SCOPED_TRACE(testing::Message() << "to " << c.small[0] << " x " << c.small[1]);
    const auto both = [&](const char* op, const int64_t* from, const int64_t* to) {
      BoundAttrs attrs;
      attrs.set("sizes", std::vector<int64_t>(to, to + 2));
      attrs.set("shape", std::vector<int64_t>{kMeansBatch, kMeansChannels, to[0], to[1]});
      const int64_t planes = kMeansBatch * kMeansChannels, read = from[0] * from[1], made = to[0] * to[1];
      const std::vector<float> rows = random_floats(planes * read, 1);
      std::vector<float> images(rows.size()), of_rows(planes * made), of_images(planes * made);
      const auto place = [](int64_t plane, int64_t i, int64_t numel) {
        return (plane / kMeansChannels * numel + i) * kMeansChannels + plane % kMeansChannels;
      };
      for (int64_t plane = 0; plane < planes; ++plane)
        for (int64_t i = 0; i < read; ++i) images[place(plane, i, read)] = rows[plane * read + i];
      EXPECT_EQ(run_kernel(std::string("cpu.") + op + ".rows", {image_of(rows.data(), DType::kF32, from, false)},
                           {image_of(of_rows.data(), DType::kF32, to, false)}, attrs),
                nullptr);
      EXPECT_EQ(run_kernel(std::string("cpu.") + op, {image_of(images.data(), DType::kF32, from, true)},
                           {image_of(of_images.data(), DType::kF32, to, true)}, attrs),
                nullptr);
      for (int64_t plane = 0; plane < planes; ++plane)
        for (int64_t i = 0; i < made; ++i)
          ASSERT_EQ(of_rows[plane * made + i], of_images[place(plane, i, made)]) << op << " " << plane << " " << i;
    };
    both("AdaptiveAveragePool", c.large, c.small);
    both("AdaptiveAveragePoolGrad", c.small, c.large);
  }
}

}  // namespace
}  // namespace lowtide::cpu
