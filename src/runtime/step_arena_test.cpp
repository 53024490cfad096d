// Places of a step's graphs in one block: what they share, and what they never do.
#include "runtime/step_arena.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace lowtide {
namespace {

constexpr int64_t kKiB = 1024;

// Two graphs whose gradients lie where what they kept was.
std::vector<StepShare> two_graphs() {
  return {{.kept = 64 * kKiB, .passing = 16 * kKiB, .late = {32 * kKiB}},
          {.kept = 64 * kKiB, .passing = 8 * kKiB, .late = {32 * kKiB, 16 * kKiB}}};
}

bool overlap(const Block& a, const Block& b) {
  return a.data < b.data + b.size_bytes && b.data < a.data + a.size_bytes;
}

TEST(StepArena, GradientsLieWhereLaterGraphsKeptTheirs) {
  BlockPool pool;
  StepArena arena(two_graphs());
  EXPECT_EQ(arena.size_bytes(), (64 + 64 + 48 + 16) * kKiB);
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(arena.begin(pool, INT64_MAX));
    std::shared_ptr<Block> first = arena.kept(0, 64 * kKiB), second = arena.kept(1, 60 * kKiB);
    ASSERT_TRUE(first && second);
    EXPECT_FALSE(overlap(*first, *second));
    EXPECT_TRUE(arena.passing(0, 16 * kKiB));  // and gives it back
    std::shared_ptr<Block> passing = arena.passing(1, 8 * kKiB);
    ASSERT_TRUE(passing);
    EXPECT_FALSE(arena.passing(0, 16 * kKiB)) << "in use";
    passing.reset();
    arena.forwards_end();
    std::shared_ptr<Block> late = arena.late(1, 0, 32 * kKiB), more = arena.late(1, 1, 16 * kKiB);
    ASSERT_TRUE(late && more);
    second.reset();
    std::shared_ptr<Block> last = arena.late(0, 0, 32 * kKiB);
    ASSERT_TRUE(last);
    EXPECT_FALSE(overlap(*last, *first) || overlap(*last, *late) || overlap(*last, *more));
    EXPECT_EQ(pool.live_bytes(), arena.size_bytes());
  }
  EXPECT_EQ(pool.live_bytes(), 0);
}

TEST(StepArena, APlaceThatIsInUseIsNobodyElses) {
  BlockPool pool;
  StepArena arena(
      {{.kept = 64 * kKiB, .late = {}}, {.kept = 64 * kKiB, .late = {64 * kKiB}}, {.kept = 256 * kKiB, .late = {}}});
  ASSERT_TRUE(arena.begin(pool, INT64_MAX));
  std::shared_ptr<Block> first = arena.kept(0, 64 * kKiB), second = arena.kept(1, 64 * kKiB);
  std::shared_ptr<Block> third = arena.kept(2, 256 * kKiB);
  ASSERT_TRUE(first && second && third);
  EXPECT_FALSE(arena.late(1, 0, 64 * kKiB)) << "backward of the second comes before that of the third";
  third.reset();
  EXPECT_TRUE(arena.late(1, 0, 64 * kKiB));
}

TEST(StepArena, WhatHasNoPlaceOrIsLargerIsNotInIt) {
  BlockPool pool;
  StepArena arena(two_graphs());
  EXPECT_FALSE(arena.kept(0, 64)) << "no step has begun";
  ASSERT_TRUE(arena.begin(pool, INT64_MAX));
  EXPECT_FALSE(arena.kept(0, 65 * kKiB));
  EXPECT_FALSE(arena.kept(2, 64));
  EXPECT_FALSE(arena.late(0, 1, 64));
  EXPECT_FALSE(arena.kept(0, 0));
}

TEST(StepArena, GradientsThatAreHeldLeaveTheNextStepWithout) {
  BlockPool pool;
  StepArena arena(two_graphs());
  ASSERT_TRUE(arena.begin(pool, INT64_MAX));
  std::shared_ptr<Block> held = arena.late(0, 0, 64);
  arena.forwards_end();
  EXPECT_FALSE(arena.begin(pool, INT64_MAX));
  EXPECT_FALSE(arena.kept(0, 64));
  held.reset();
  EXPECT_TRUE(arena.begin(pool, INT64_MAX));
}

}  // namespace
}  // namespace lowtide
