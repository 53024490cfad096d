#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

constexpr int64_t kSizes[] = {2, 3, 4, 5};

struct FoldedPadCase {
  const char* mode;
  std::vector<int64_t> pads;
};

// Against the reference: pads that crop, and some that are wider than what they repeat.
TEST(FoldedPad, AgreesWithTheReferenceAndItsGradientIsSummed) {
  std::vector<FoldedPadCase> cases;
  for (const char* mode : {"reflect", "edge", "wrap"}) {
    cases.push_back({mode, {0, 0, 1, 2, 0, 0, 2, 1}});
    cases.push_back({mode, {0, 1, 0, 3, 1, 2, 3, 4}});
    cases.push_back({mode, {0, 0, -1, 2, 0, 0, 2, -1}});
    cases.push_back({mode, {1, 0, 9, 11, 0, 0, 7, 12}});
  }
  for (const FoldedPadCase& c : cases) {
    SCOPED_TRACE(testing::Message() << c.mode << " " << testing::PrintToString(c.pads));
    const std::vector<int64_t> sizes(kSizes, kSizes + 4);
    std::vector<int64_t> padded;
    int64_t numel = 1, made = 1;
    for (size_t i = 0; i < 4; ++i) {
      padded.push_back(sizes[i] + c.pads[i] + c.pads[i + 4]);
      numel *= sizes[i];
      made *= padded[i];
    }
    BoundAttrs attrs{{"mode", std::string(c.mode)}};
    attrs.set("pads", c.pads);
    attrs.set("shape", sizes);
    for (const bool channels_last : {false, true}) {
      SCOPED_TRACE(testing::Message() << "channels last " << channels_last);
      const auto images = [&](const void* data, DType dtype, const std::vector<int64_t>& s) {
        if (!channels_last) return tensor(data, dtype, s);
        return tensor(data, dtype, s, {s[1] * s[2] * s[3], 1, s[1] * s[3], s[1]});
      };
      const std::string kernels[] = {channels_last ? "cpu.Pad.images" : "cpu.Pad.folded",
                                     channels_last ? "cpu.PadGrad.images" : "cpu.PadGrad"};
      const auto run = [&](bool reference, DType dtype, const void* x, const void* dy, void* y, void* dx) {
        EXPECT_EQ(run_kernel(reference ? "reference.Pad" : kernels[0], {images(x, dtype, sizes)},
                             {images(y, dtype, padded)}, attrs),
                  nullptr);
        EXPECT_EQ(run_kernel(reference ? "reference.PadGrad" : kernels[1], {images(dy, dtype, padded)},
                             {images(dx, dtype, sizes)}, attrs),
                  nullptr);
      };
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        const std::vector<uint16_t> short_x = halves(dtype, random_floats(numel, 1)),
                                    short_dy = halves(dtype, random_floats(made, 2));
        const std::vector<float> x = widened(dtype, short_x), dy = widened(dtype, short_dy);
        std::vector<float> wanted(made + numel), last;
        run(true, DType::kF32, x.data(), dy.data(), wanted.data(), wanted.data() + made);
        for_every_run(
            [&] {
              std::vector<float> found(made + numel, NAN);
              run(false, DType::kF32, x.data(), dy.data(), found.data(), found.data() + made);
              return last = found;
            },
            [&](const std::vector<float>& found) {
              expect_close(found.data(), made, [&](int64_t i) { return wanted[i]; }, 0, 0);
              expect_close(found.data() + made, numel, [&](int64_t i) { return wanted[made + i]; }, 1e-5, 1e-5);
            });
        std::vector<uint16_t> short_found(made + numel);
        run(false, dtype, short_x.data(), short_dy.data(), short_found.data(), short_found.data() + made);
        EXPECT_EQ(short_found, halves(dtype, last));  // one rounding
      }
    }
  }
}

}  // namespace
}  // namespace lowtide::cpu
