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

// Along each axis, indices given once for all of the first dim, in every dtype that is summed.
TEST(Indices, ElementsAreGatheredAndScatteredAlongAnAxis) {
  constexpr int64_t kData[3] = {3, 40, 21};
  for (int64_t axis = 0; axis < 3; ++axis) {
    SCOPED_TRACE(axis);
    std::vector<int64_t> sizes = {3, 37, 19};
    sizes[axis] = 50;
    const int64_t numel = sizes[0] * sizes[1] * sizes[2], all = kData[0] * kData[1] * kData[2];
    std::mt19937 generator(5);
    std::vector<int64_t> indices(sizes[1] * sizes[2] * (axis == 0 ? 50 : 1));
    for (int64_t& index : indices) index = static_cast<int64_t>(generator() % (2 * kData[axis])) - kData[axis];
    const TensorRef at = tensor(indices.data(), DType::kI64, sizes, {axis == 0 ? sizes[1] * sizes[2] : 0, sizes[2], 1});
    // Where in the data element i of the indices points.
    const auto place = [&](int64_t i) {
      int64_t coordinates[3] = {i / (sizes[1] * sizes[2]), i / sizes[2] % sizes[1], i % sizes[2]};
      const int64_t index = indices[axis == 0 ? i : i % (sizes[1] * sizes[2])];
      coordinates[axis] = index < 0 ? index + kData[axis] : index;
      return (coordinates[0] * kData[1] + coordinates[1]) * kData[2] + coordinates[2];
    };
    const std::vector<int64_t> data_sizes(kData, kData + 3);
    const std::vector<float> data = random_floats(all, 1), updates = random_floats(numel, 2);
    std::vector<double> summed(data.begin(), data.end());
    std::vector<float> replaced = data;
    for (int64_t i = 0; i < numel; ++i) summed[place(i)] += updates[i];
    for (int64_t i = 0; i < numel; ++i) replaced[place(i)] = updates[i];
    BoundAttrs attrs{{"axis", axis}, {"reduction", std::string("add")}};
    for_every_run(
        [&] {
          std::vector<float> out(numel + all);
          EXPECT_EQ(run_kernel("cpu.GatherElements", {floats(data.data(), data_sizes), at}, {floats(out.data(), sizes)},
                               attrs),
                    nullptr);
          EXPECT_EQ(
              run_kernel("cpu.ScatterElements", {floats(data.data(), data_sizes), at, floats(updates.data(), sizes)},
                         {floats(out.data() + numel, data_sizes)}, attrs),
              nullptr);
          return out;
        },
        [&](const std::vector<float>& out) {
          for (int64_t i = 0; i < numel; ++i) ASSERT_EQ(out[i], data[place(i)]);
          expect_close(out.data() + numel, all, [&](int64_t i) { return summed[i]; }, 1e-6, 1e-6);
        });

    const std::vector<uint16_t> short_data = halves(DType::kBF16, data), short_updates = halves(DType::kBF16, updates);
    std::vector<float> wide = widened(DType::kBF16, short_data), wide_updates = widened(DType::kBF16, short_updates);
    for (int64_t i = 0; i < numel; ++i) wide[place(i)] += wide_updates[i];
    std::vector<uint16_t> found = short_data;
    const TensorRef onto = tensor(found.data(), DType::kBF16, data_sizes);
    run_kernel("cpu.ScatterElements", {onto, at, tensor(short_updates.data(), DType::kBF16, sizes)}, {onto}, attrs);
    EXPECT_EQ(found, halves(DType::kBF16, wide));  // one rounding

    attrs.set("reduction", std::string("none"));
    std::vector<float> out(all);
    run_kernel("cpu.ScatterElements", {floats(data.data(), data_sizes), at, floats(updates.data(), sizes)},
               {floats(out.data(), data_sizes)}, attrs);
    EXPECT_EQ(out, replaced);
    indices[3] = kData[axis];
    out.resize(std::max(numel, all));
    EXPECT_STREQ(
        run_kernel("cpu.GatherElements", {floats(data.data(), data_sizes), at}, {floats(out.data(), sizes)}, attrs),
        "GatherElements: an index is out of range");
    EXPECT_STREQ(run_kernel("cpu.ScatterElements", {floats(data.data(), data_sizes), at, floats(updates.data(), sizes)},
                            {floats(out.data(), data_sizes)}, attrs),
                 "ScatterElements: an index is out of range");
  }
}

// Rows that share an index, with ties, infinities and NaN; every way of joining, also without the old entries.
TEST(Indices, RowsAreScatteredWhole) {
  constexpr int64_t kRows = 9, kPicks = 40, kCols = 21;
  std::mt19937 generator(5);
  std::vector<int64_t> indices(kPicks);
  for (int64_t& index : indices) index = static_cast<int64_t>(generator() % (2 * kRows - 2)) - kRows;
  std::vector<float> data = random_floats(kRows * kCols, 1), updates = random_floats(kPicks * kCols, 2);
  for (float& update : updates) update = std::round(update);
  updates[5] = NAN;
  updates[kCols + 3] = INFINITY;
  data[2] = NAN;
  const TensorRef at = tensor(indices.data(), DType::kI64, {kPicks, kCols}, {1, 0});
  for (const char* reduction : {"none", "add", "max", "min"}) {
    for (const bool anew : {false, true}) {
      const bool is_extreme = *reduction == 'm';
      if (anew && !is_extreme) continue;
      SCOPED_TRACE(testing::Message() << reduction << " anew " << anew);
      BoundAttrs attrs{{"axis", int64_t{0}}, {"reduction", std::string(reduction)}};
      if (is_extreme) attrs.set("anew", anew);
      const auto run = [&](const char* kernel, const TensorRef& index) {
        std::vector<float> out(kRows * kCols, 7);
        EXPECT_EQ(
            run_kernel(kernel, {floats(data.data(), {kRows, kCols}), index, floats(updates.data(), {kPicks, kCols})},
                       {floats(out.data(), {kRows, kCols})}, attrs),
            nullptr);
        return out;
      };
      const std::vector<float> wanted = run("reference.ScatterElements", at);
      for_every_run([&] { return run("cpu.ScatterElements", at); },
                    [&](const std::vector<float>& out) {
                      expect_close(out.data(), out.size(), [&](int64_t i) { return wanted[i]; }, 1e-6, 1e-6);
                    });
    }
  }
}

}  // namespace
}  // namespace lowtide::cpu
