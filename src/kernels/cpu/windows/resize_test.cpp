#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

struct ResizeCase {
  int64_t small[2], large[2];
  const char* mode;
  bool align_corners;
};
constexpr ResizeCase kResizeCases[] = {{{3, 2}, {6, 5}, "nearest", false},  {{5, 6}, {3, 2}, "nearest", false},
                                       {{3, 2}, {7, 5}, "bilinear", false}, {{5, 9}, {3, 4}, "bilinear", false},
                                       {{3, 2}, {5, 4}, "bilinear", true},  {{4, 4}, {1, 1}, "bilinear", true}};
constexpr int64_t kResizeBatch = 2, kDepth = 70;

struct ResizeLayout {
  bool channels_last;
  TensorRef image(const void* data, DType dtype, const int64_t* size) const {
    const int64_t h = size[0], w = size[1];
    if (!channels_last) return tensor(data, dtype, {kResizeBatch, kDepth, h, w});
    return tensor(data, dtype, {kResizeBatch, kDepth, h, w}, {kDepth * h * w, 1, w * kDepth, kDepth});
  }
};
int64_t numel(const int64_t* size) { return kResizeBatch * kDepth * size[0] * size[1]; }

// Against the reference, in both layouts; halves are the bits of f32, rounded.
TEST(Resize, AgreesWithTheReference) {
  for (const ResizeCase& c : kResizeCases) {
    for (const bool channels_last : {false, true}) {
      SCOPED_TRACE(testing::Message() << c.mode << " to " << c.large[0] << " x " << c.large[1] << " channels last "
                                      << channels_last);
      const ResizeLayout layout{channels_last};
      const int64_t small = numel(c.small), large = numel(c.large);
      BoundAttrs attrs{{"mode", std::string(c.mode)}, {"align_corners", c.align_corners}};
      attrs.set("sizes", std::vector<int64_t>(c.large, c.large + 2));
      attrs.set("shape", std::vector<int64_t>{kResizeBatch, kDepth, c.small[0], c.small[1]});
      const auto run = [&](const std::string& provider, DType dtype, const void* x, const void* dy, void* y, void* dx) {
        EXPECT_EQ(run_kernel(provider + ".Resize", {layout.image(x, dtype, c.small)}, {layout.image(y, dtype, c.large)},
                             attrs),
                  nullptr);
        EXPECT_EQ(run_kernel(provider + ".ResizeGrad", {layout.image(dy, dtype, c.large)},
                             {layout.image(dx, dtype, c.small)}, attrs),
                  nullptr);
      };
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        const std::vector<uint16_t> short_x = halves(dtype, random_floats(small, 1)),
                                    short_dy = halves(dtype, random_floats(large, 2));
        const std::vector<float> x = widened(dtype, short_x), dy = widened(dtype, short_dy);
        std::vector<float> wanted(large + small);
        run("reference", DType::kF32, x.data(), dy.data(), wanted.data(), wanted.data() + large);
        std::vector<float> last;
        for_every_run(
            [&] {
              std::vector<float> found(large + small, NAN);
              run("cpu", DType::kF32, x.data(), dy.data(), found.data(), found.data() + large);
              return last = found;
            },
            [&](const std::vector<float>& found) {
              expect_close(found.data(), found.size(), [&](int64_t i) { return wanted[i]; }, 1e-5, 1e-5);
            });
        std::vector<uint16_t> short_found(large + small);
        run("cpu", dtype, short_x.data(), short_dy.data(), short_found.data(), short_found.data() + large);
        EXPECT_EQ(short_found, halves(dtype, last));
      }
    }
  }
}

TEST(Resize, LineByLineAgreesWithTheReference) {
  struct Case {
    int64_t small[2], large[2];
  };
  for (const Case& c : {Case{{3, 5}, {6, 10}}, {{4, 3}, {12, 7}}, {{7, 9}, {3, 4}}, {{5, 4}, {5, 8}}}) {
    SCOPED_TRACE(testing::Message() << "to " << c.large[0] << " x " << c.large[1]);
    const ResizeLayout layout{false};
    const int64_t small = numel(c.small), large = numel(c.large);
    BoundAttrs attrs{{"mode", std::string("nearest")}, {"align_corners", false}};
    attrs.set("sizes", std::vector<int64_t>(c.large, c.large + 2));
    attrs.set("shape", std::vector<int64_t>{kResizeBatch, kDepth, c.small[0], c.small[1]});
    const std::vector<float> x = random_floats(small, 1), dy = random_floats(large, 2);
    const auto run = [&](const std::string& provider, const std::string& rows, float* y, float* dx) {
      EXPECT_EQ(run_kernel(provider + ".Resize" + rows, {layout.image(x.data(), DType::kF32, c.small)},
                           {layout.image(y, DType::kF32, c.large)}, attrs),
                nullptr);
      EXPECT_EQ(run_kernel(provider + ".ResizeGrad" + rows, {layout.image(dy.data(), DType::kF32, c.large)},
                           {layout.image(dx, DType::kF32, c.small)}, attrs),
                nullptr);
    };
    std::vector<float> wanted(large + small);
    run("reference", "", wanted.data(), wanted.data() + large);
    for_every_run(
        [&] {
          std::vector<float> found(large + small, NAN);
          run("cpu", ".rows", found.data(), found.data() + large);
          return found;
        },
        [&](const std::vector<float>& found) {
          expect_close(found.data(), found.size(), [&](int64_t i) { return wanted[i]; }, 1e-6, 1e-6);
        });
  }
}

}  // namespace
}  // namespace lowtide::cpu
