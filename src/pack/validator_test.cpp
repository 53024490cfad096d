#include "pack/validator.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "pack/random.h"

namespace lowtide {
namespace {

// 0 and 1 live together, 2 lives after both.
Problem three() {
  return {{{.size_bytes = 100, .first = 0, .last = 3},
           {.size_bytes = 64, .first = 3, .last = 5},
           {.size_bytes = 64, .first = 6, .last = 6}}};
}

Solution at(std::vector<int64_t> offsets, int64_t height) {
  return {.offsets = std::move(offsets), .height = height, .order = {}};
}

TEST(Validator, AcceptsAValidSolution) { EXPECT_EQ(validate(three(), at({0, 128, 0}, 192)), std::nullopt); }

TEST(Validator, NamesTheTwoBuffersThatOverlap) {
  EXPECT_EQ(validate(three(), at({64, 128, 0}, 192)),
            "buffer 0 (bytes [64, 192), steps [0, 3]) overlaps buffer 1 (bytes [128, 192), steps [3, 5])");
}

TEST(Validator, CountsThePaddingAsOwned) {
  Problem problem = three();
  problem.buffers[1].alignment = 4;
  EXPECT_NE(validate(problem, at({0, 100, 0}, 164)), std::nullopt);
  EXPECT_EQ(validate(problem, at({0, 128, 0}, 192)), std::nullopt);
}

TEST(Validator, FindsMisalignment) {
  EXPECT_EQ(validate(three(), at({0, 132, 0}, 196)),
            "buffer 1 (bytes [132, 196), steps [3, 5]) is misaligned: expected a multiple of 64");
}

TEST(Validator, FindsAWrongHeight) {
  EXPECT_EQ(validate(three(), at({0, 128, 0}, 128)), "the height is given as 128 but the buffers end at 192");
  EXPECT_EQ(validate(three(), at({0, 128, 0}, 256)), "the height is given as 256 but the buffers end at 192");
}

TEST(Validator, FindsMissingAndImpossibleOffsets) {
  EXPECT_EQ(validate(three(), at({0, 128}, 192)), "expected 3 offsets, found 2");
  EXPECT_EQ(validate(three(), at({0, -64, 0}, 128)), "buffer 1 (bytes [-64, 0), steps [3, 5]) has a negative offset");
  EXPECT_EQ(validate(three(), at({0, INT64_MAX, 0}, 128)), "buffer 1 ends beyond 2^61 bytes");
}

// Each pair, looked at by itself.
bool any_pair_overlaps(const Problem& problem, const std::vector<int64_t>& offsets) {
  for (size_t i = 0; i < offsets.size(); ++i)
    for (size_t j = i + 1; j < offsets.size(); ++j) {
      const Buffer &a = problem.buffers[i], &b = problem.buffers[j];
      const bool together = a.first <= b.last && b.first <= a.last;
      if (together && offsets[i] < offsets[j] + b.size_bytes && offsets[j] < offsets[i] + a.size_bytes) return true;
    }
  return false;
}

TEST(Validator, FindsAnOverlapWhereverAPairHasOne) {
  SplitMix rng(1);
  int overlapping = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    SCOPED_TRACE(trial);
    Problem problem;
    std::vector<int64_t> offsets;
    int64_t height = 0;
    for (int i = rng.between(1, 8); i > 0; --i) {
      const int32_t first = rng.between(0, 12);
      problem.buffers.push_back(
          {.size_bytes = rng.between(1, 4), .first = first, .last = first + rng.between(0, 5), .alignment = 1});
      offsets.push_back(rng.between(0, 24));
      height = std::max(height, offsets.back() + problem.buffers.back().size_bytes);
    }
    const bool overlaps = any_pair_overlaps(problem, offsets);
    overlapping += overlaps;
    EXPECT_EQ(validate(problem, at(offsets, height)).has_value(), overlaps);
  }
  EXPECT_GT(overlapping, 5000);
  EXPECT_LT(overlapping, 15000);
}

TEST(Validator, ZeroBytesOverlapNothing) {
  Problem problem = three();
  problem.buffers[1].size_bytes = 0;
  EXPECT_EQ(validate(problem, at({0, 64, 0}, 128)), std::nullopt);
}

}  // namespace
}  // namespace lowtide
