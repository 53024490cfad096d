#include <algorithm>

#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

TEST(Indices, GatherAndItsGradient) {
  struct Case {
    int64_t rows, cols, n, skipped;
  };
  for (const Case& c : {Case{1, 1, 1, -1}, {3, 17, 5, 0}, {2, 768, 513, -1}, {1025, 3, 2000, 7}, {100, 513, 65, -1}}) {
    SCOPED_TRACE(testing::Message() << c.rows << " x " << c.cols << " by " << c.n);
    const std::vector<float> table = random_floats(c.rows * c.cols, 1), dy = random_floats(c.n * c.cols, 2);
    std::mt19937 generator(3);
    std::vector<int64_t> indices(c.n);
    for (int64_t& index : indices) {
      index = static_cast<int64_t>(generator() % c.rows);
      if (generator() % 4 == 0) index -= c.rows;
    }
    std::vector<double> wanted(c.rows * c.cols);
    for (int64_t i = 0; i < c.n; ++i) {
      const int64_t row = (indices[i] + c.rows) % c.rows;
      for (int64_t k = 0; k < c.cols && row != c.skipped; ++k) wanted[row * c.cols + k] += dy[i * c.cols + k];
    }
    const bool onto = c.rows % 2 == 1;
    if (onto)
      for (double& value : wanted) value -= 1;  // what stands there before
    for_every_run(
        [&] {
          std::vector<float> out(c.n * c.cols + c.rows * c.cols, -1.0f);
          BoundAttrs attrs{{"axis", int64_t{0}}};
          run_kernel("cpu.Gather", {floats(table.data(), {c.rows, c.cols}), integers(indices)},
                     {floats(out.data(), {c.n, c.cols})}, attrs);
          if (c.skipped >= 0) attrs.set("padding_idx", c.skipped);
          const TensorRef dx = floats(out.data() + c.n * c.cols, {c.rows, c.cols});
          run_kernel("cpu.GatherGrad", {floats(dy.data(), {c.n, c.cols}), integers(indices), onto ? dx : TensorRef{}},
                     {dx}, attrs);
          return out;
        },
        [&](const std::vector<float>& out) {
          for (int64_t i = 0; i < c.n * c.cols; ++i) {
            ASSERT_EQ(out[i], table[(indices[i / c.cols] + c.rows) % c.rows * c.cols + i % c.cols]);
          }
          expect_close(out.data() + c.n * c.cols, wanted.size(), [&](int64_t i) { return wanted[i]; }, 1e-6, 2e-5);
        });
  }
}

// Sums of bf16 rows are those of floats, rounded once; added onto what stands there or not.
TEST(Indices, GradientsOfHalvesAreRoundedSums) {
  constexpr int64_t rows = 3, cols = 300, n = 200;
  const std::vector<BFloat16> dy = brains(random_floats(n * cols, 1)), before = brains(random_floats(rows * cols, 2));
  const std::vector<float> wide_dy(dy.begin(), dy.end()), wide_before(before.begin(), before.end());
  std::vector<int64_t> indices(n, 2);
  indices[17] = 0;
  const BoundAttrs attrs{{"axis", int64_t{0}}};
  for (const bool onto : {false, true}) {
    for_every_run(
        [&] {
          std::vector<BFloat16> out = before;
          const TensorRef dx = brains(out.data(), {rows, cols});
          run_kernel("cpu.GatherGrad", {brains(dy.data(), {n, cols}), integers(indices), onto ? dx : TensorRef{}}, {dx},
                     attrs);
          return out;
        },
        [&](const std::vector<BFloat16>& out) {
          std::vector<float> wanted = wide_before;
          const TensorRef dx = floats(wanted.data(), {rows, cols});
          run_kernel("cpu.GatherGrad", {floats(wide_dy.data(), {n, cols}), integers(indices), onto ? dx : TensorRef{}},
                     {dx}, attrs);
          for (int64_t i = 0; i < rows * cols; ++i) ASSERT_EQ(out[i].bits, BFloat16(wanted[i]).bits) << i;
        });
  }
}

TEST(Indices, OutOfRangeIsRefusedBeforeAnythingIsWritten) {
  const std::vector<float> x = random_floats(15, 1);
  std::vector<float> y(15, 7);
  const BoundAttrs attrs{{"axis", int64_t{0}}};
  const auto gather = [&](const std::vector<int64_t>& indices) {
    const int64_t n = static_cast<int64_t>(indices.size());
    const bool forward =
        run_kernel("cpu.Gather", {floats(x.data(), {3, 3}), integers(indices)}, {floats(y.data(), {n, 3})}, attrs);
    const bool backward = run_kernel("cpu.GatherGrad", {floats(x.data(), {n, 3}), integers(indices), {}},
                                     {floats(y.data(), {3, 3})}, attrs);
    EXPECT_EQ(forward, backward);
    return forward;
  };
  EXPECT_TRUE(gather({0, -3, 2, 3, -4}));
  EXPECT_TRUE(gather({-4}));
  EXPECT_EQ(y, std::vector<float>(15, 7));
  EXPECT_FALSE(gather({0, -3, 2}));
}

}  // namespace
}  // namespace lowtide::cpu
