#include "emit/storage.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace lowtide {
namespace {

const Dim b = Dim::symbol("b"), s = Dim::symbol("s");

TEST(ReshapeStrides, RowMajorAlwaysWorks) {
  EXPECT_EQ(*reshape_strides({b, s, 768}, row_major_strides({b, s, 768}), {b * s, 12, 64}),
            row_major_strides({b * s, 12, 64}));
}

TEST(ReshapeStrides, SplitsATransposedDim) {
  // [b, s, 12*64] as [b, 12, s, 64] transposed, then the heads split again: still a view.
  const Shape strides = {s * 768, 64, 768, 1};
  EXPECT_EQ(*reshape_strides({b, 12, s, 64}, strides, {b, 3, 4, s, 64}), (Shape{s * 768, 256, 64, 768, 1}));
  // Merging s and the heads crosses strides.
  EXPECT_FALSE(reshape_strides({b, 12, s, 64}, strides, {b, 12 * s, 64}).has_value());
}

TEST(ReshapeStrides, OnesComeAndGo) {
  EXPECT_TRUE(reshape_strides({b, 1, s}, {s, s, 1}, {b, s, 1, 1}).has_value());
  EXPECT_TRUE(reshape_strides({1, 1}, {5, 7}, {}).has_value());
}

// The slow oracle: where each element of the reshaped tensor must lie.
TEST(ReshapeStrides, AgreesWithElementOrder) {
  std::mt19937 random(3);
  int views = 0;
  for (int run = 0; run < 2000; ++run) {
    Shape shape, target;
    int64_t total = 1;
    for (int i = 0; i < 4; ++i) {
      shape.push_back(Dim(static_cast<int64_t>(1 + random() % 3) * (random() % 2 ? 2 : 1)));
      total *= shape.back().constant();
    }
    std::vector<size_t> perm(4);
    std::iota(perm.begin(), perm.end(), size_t{0});
    std::shuffle(perm.begin(), perm.end(), random);
    Shape strides(4);
    int64_t next = 1;
    for (size_t i = 4; i-- > 0;) {
      strides[perm[i]] = next;
      next *= shape[perm[i]].constant();
    }
    for (int64_t rest = total; rest > 1 || target.empty();) {
      int64_t part = 1 + static_cast<int64_t>(random() % 6);
      if (rest % part != 0) part = target.size() > 4 ? rest : 1;
      target.push_back(Dim(part));
      rest /= part;
      if (target.size() > 7) break;
    }
    if (!(numel(target) == Dim(total))) continue;
    const std::optional<Shape> found = reshape_strides(shape, strides, target);
    if (!found) continue;
    ++views;
    auto address = [](const Shape& sizes, const Shape& steps, int64_t index) {
      int64_t result = 0;
      for (size_t i = sizes.size(); i-- > 0;) {
        result += index % sizes[i].constant() * steps[i].constant();
        index /= sizes[i].constant();
      }
      return result;
    };
    for (int64_t i = 0; i < total; ++i)
      ASSERT_EQ(address(target, *found, i), address(shape, strides, i)) << "run " << run;
  }
  EXPECT_GT(views, 200);
}

TEST(Layout, IsRecognised) {
  EXPECT_EQ(layout_of({b, 3, s, s}, row_major_strides({b, 3, s, s})), Layout::kRowMajor);
  EXPECT_EQ(layout_of({b, 3, s, s}, channels_last_strides({b, 3, s, s})), Layout::kChannelsLast);
  EXPECT_EQ(layout_of({b, 3, s}, {s * 3, 1, 3}), Layout::kChannelsLast);
  EXPECT_EQ(layout_of({b, 12, s, 64}, {s * 768, 64, 768, 1}), Layout::kInnerDense);
  EXPECT_EQ(layout_of({b, s}, {0, 0}), Layout::kStrided);
  EXPECT_TRUE(is_dense({b, 12, s, 64}, {s * 768, 64, 768, 1}));
  EXPECT_FALSE(is_dense({b, 12, s, 64}, {s * 2304, 64, 2304, 1}));
}

}  // namespace
}  // namespace lowtide
