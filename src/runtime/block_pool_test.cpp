#include "runtime/block_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace lowtide {
namespace {

constexpr int64_t kMiB = 1 << 20;

TEST(BlockPool, ReusesAndTrims) {
  BlockPool pool;
  char* first = pool.acquire(3 * kMiB)->data;
  EXPECT_EQ(pool.acquire(3 * kMiB)->data, first);
  EXPECT_EQ(pool.live_bytes(), 0);
  EXPECT_EQ(pool.free_bytes(), 3 * kMiB);
  pool.trim();
  EXPECT_EQ(pool.free_bytes(), 0);
}

TEST(BlockPool, LargeBlocksBeginWhereHugePagesDo) {
  BlockPool pool;
  std::vector<std::shared_ptr<Block>> held;
  for (int64_t bytes : {10 * kMiB, 3 * kMiB + 4096, 2 * kMiB, 10 * kMiB, 5 * kMiB + 8192}) {
    held.push_back(pool.acquire(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(held.back()->data) % (2 * kMiB), 0u);
    std::memset(held.back()->data, static_cast<int>(held.size()), static_cast<size_t>(bytes));
  }
  for (size_t i = 0; i < held.size(); ++i) {  // none lies over another
    EXPECT_EQ(held[i]->data[0], static_cast<char>(i + 1));
    EXPECT_EQ(held[i]->data[held[i]->size_bytes - 1], static_cast<char>(i + 1));
  }
}

TEST(BlockPool, TakesNoLargerBlockThanItMay) {
  BlockPool pool;
  char* larger = pool.acquire(10 * kMiB)->data;
  EXPECT_EQ(pool.acquire(9 * kMiB)->data, larger);
  const auto exact = pool.acquire(9 * kMiB, {.largest = 9 * kMiB});
  EXPECT_EQ(exact->size_bytes, 9 * kMiB);
  EXPECT_EQ(pool.acquire(9 * kMiB, {.largest = 10 * kMiB})->size_bytes, 10 * kMiB);
}

TEST(BlockPool, GivesBackWhatIsFreeBeforeItMapsMoreThanItMay) {
  BlockPool pool;
  std::vector<std::shared_ptr<Block>> blocks = {pool.acquire(8 * kMiB), pool.acquire(4 * kMiB), pool.acquire(2 * kMiB)};
  for (std::shared_ptr<Block>& block : blocks) block.reset();
  ASSERT_EQ(pool.free_bytes(), 14 * kMiB);
  const auto held = pool.acquire(6 * kMiB, {.together = 13 * kMiB});
  EXPECT_EQ(held->size_bytes, 6 * kMiB);
  EXPECT_EQ(pool.free_bytes(), 6 * kMiB);  // the first is gone
  const auto all = pool.acquire(6 * kMiB, {.together = 6 * kMiB});
  EXPECT_EQ(pool.free_bytes(), 0);
}

TEST(BlockPool, OfFreeBlocksTheSmallestThatIsEnoughGoes) {
  BlockPool pool;
  std::vector<std::shared_ptr<Block>> blocks = {pool.acquire(8 * kMiB), pool.acquire(4 * kMiB), pool.acquire(2 * kMiB)};
  for (std::shared_ptr<Block>& block : blocks) block.reset();
  const auto held = pool.acquire(kMiB, {.together = 14 * kMiB});  // one too much
  EXPECT_EQ(held->size_bytes, kMiB);
  EXPECT_EQ(pool.free_bytes(), 12 * kMiB);
}

TEST(BlockPool, WhatComesInPlaceTakesWhatIsFree) {
  BlockPool pool;
  pool.acquire(8 * kMiB);
  EXPECT_EQ(pool.acquire_in_place(3 * kMiB, INT64_MAX)->size_bytes, 8 * kMiB);
  const auto held = pool.acquire_in_place(3 * kMiB, 4 * kMiB);
  EXPECT_EQ(held->size_bytes, 3 * kMiB);
  EXPECT_EQ(pool.free_bytes(), 0) << "given back for it";
}

TEST(BlockPool, WhereHalvesWorkIsOneBlockForAll) {
  BlockPool pool;
  const auto step = [&](std::vector<int64_t> sizes) {
    pool.forward_begins();
    for (const int64_t size : sizes) {
      const auto block = pool.acquire_to_work_in(size, INT64_MAX);
      EXPECT_GE(block->size_bytes, size);
      EXPECT_NE(pool.acquire(block->size_bytes)->data, block->data);
    }
    pool.forward_is_gone();
    pool.trim(1);  // what the line above took, some steps later
  };
  step({2 * kMiB, 4 * kMiB, 3 * kMiB});
  step({2 * kMiB, 4 * kMiB, 3 * kMiB});
  EXPECT_EQ(pool.acquire_to_work_in(kMiB, INT64_MAX)->size_bytes, 4 * kMiB);
  for (int i = 0; i < 2; ++i) step({kMiB});
  EXPECT_EQ(pool.acquire_to_work_in(kMiB, INT64_MAX)->size_bytes, kMiB) << "the larger one served two steps before";
}

TEST(BlockPool, BlocksGoBackWhereSomebodyElseWorksInTheSameMemory) {
  BlockPool pool;
  pool.acquire(3 * kMiB);
  auto held = pool.acquire(2 * kMiB);
  {
    const BlockPool::KeepsNone one(pool);
    EXPECT_EQ(pool.free_bytes(), 0);
    const BlockPool::KeepsNone other(pool);
    held.reset();
    pool.acquire(kMiB / 2);
    pool.acquire_to_work_in(kMiB, INT64_MAX);
    EXPECT_EQ(pool.free_bytes() + pool.live_bytes(), 0);
  }
  pool.acquire(3 * kMiB);
  EXPECT_EQ(pool.free_bytes(), 3 * kMiB);
}

TEST(BlockPool, BlocksAgeWithStepsNotWithForwards) {
  BlockPool pool;
  pool.acquire(3 * kMiB);
  const auto step = [&](int forwards) {
    for (int i = 0; i < forwards; ++i) pool.forward_begins();
    for (int i = 0; i < forwards; ++i) pool.forward_is_gone();
  };
  for (int i = 0; i < 7; ++i) step(12);  // a model of twelve graphs
  pool.trim(8);
  EXPECT_EQ(pool.free_bytes(), 3 * kMiB);
  step(1);
  pool.trim(8);
  EXPECT_EQ(pool.free_bytes(), 0);
}

}  // namespace
}  // namespace lowtide
