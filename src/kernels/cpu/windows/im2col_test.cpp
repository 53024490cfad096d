#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

struct Im2ColCase {
  std::vector<int64_t> kernel, strides, pads, dilations, image, places;
};

// Windows that hang over an edge, lie outside of the image as a whole, and leave out places.
TEST(Im2Col, AgreesWithTheReference) {
  for (const Im2ColCase& c : {Im2ColCase{{3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, {9, 11}, {9, 11}},
                              {{2, 3}, {2, 3}, {0, 2, 1, 0}, {2, 1}, {5, 7}, {2, 3}},
                              {{1, 4}, {1, 2}, {0, 0, 0, 0}, {1, 1}, {1, 40}, {1, 19}},
                              {{2, 5}, {3, 1}, {2, 6, 2, 6}, {1, 2}, {4, 3}, {3, 7}}}) {
    constexpr int64_t kImages = 3, kOfEach = 5;
    const std::vector<int64_t> small{kImages, kOfEach, c.image[0], c.image[1]},
        large{kImages, kOfEach, c.kernel[0], c.kernel[1], c.places[0], c.places[1]};
    SCOPED_TRACE(testing::PrintToString(large));
    BoundAttrs attrs{{"kernel_shape", c.kernel}, {"strides", c.strides}, {"pads", c.pads}, {"dilations", c.dilations}};
    attrs.set("shape", small);
    const int64_t n = kImages * kOfEach * c.image[0] * c.image[1];
    const int64_t m = kImages * kOfEach * c.kernel[0] * c.kernel[1] * c.places[0] * c.places[1];
    const std::vector<float> x = random_floats(n, 1), dy = random_floats(m, 2);
    const auto run = [&](const std::string& provider, float* y, float* dx) {
      EXPECT_EQ(run_kernel(provider + ".Im2Col", {floats(x.data(), small)}, {floats(y, large)}, attrs), nullptr);
      EXPECT_EQ(run_kernel(provider + ".Col2Im", {floats(dy.data(), large)}, {floats(dx, small)}, attrs), nullptr);
    };
    std::vector<float> wanted(m + n);
    run("reference", wanted.data(), wanted.data() + m);
    for_every_run(
        [&] {
          std::vector<float> found(m + n, NAN);
          run("cpu", found.data(), found.data() + m);
          return found;
        },
        [&](const std::vector<float>& found) {
          expect_close(found.data(), found.size(), [&](int64_t i) { return wanted[i]; }, 1e-6, 1e-6);
        });
  }
}

}  // namespace
}  // namespace lowtide::cpu
