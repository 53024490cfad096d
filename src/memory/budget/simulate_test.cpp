// How near a simulated step is to the plan of the rewritten graph is a property of whole sessions: tests/memory.
#include <gtest/gtest.h>

#include "memory/budget/step_of_nodes.h"

namespace lowtide {
namespace {

// v0 → v1 → v2 in forward; backward reads v1, then v0.
std::vector<StepNode> chain() {
  return {{.reads = {}, .makes = {64}, .milliseconds = 1},  {.reads = {0}, .makes = {128}, .milliseconds = 2},
          {.reads = {1}, .makes = {64}, .milliseconds = 4}, {.reads = {2}, .makes = {}, .milliseconds = 0},
          {.reads = {1}, .makes = {64}, .milliseconds = 8}, {.reads = {0, 3}, .makes = {64}, .milliseconds = 16}};
}

Kept kept_of(const StepModel& model, std::initializer_list<size_t> values) {
  Kept kept(model.values.size());
  for (size_t value : values) kept[value] = Keep::kWhole;
  return kept;
}

using Bytes = std::vector<int64_t>;
using Again = std::vector<int32_t>;

TEST(Simulate, KeepsWhatIsKeptUntilItsLastReader) {
  const StepModel model = step_of(chain(), 3);
  const SimulatedStep step = simulate(model, kept_of(model, {0, 1}));
  EXPECT_EQ(step.bytes, (Bytes{64, 192, 256, 256, 256, 192}));
  EXPECT_EQ(step.peak_bytes, 256);
  EXPECT_EQ(step.again, Again{});
  EXPECT_EQ(step.milliseconds, 31);
}

TEST(Simulate, RunsTheNodeOfWhatIsGivenUpRightBeforeItsFirstReader) {
  const StepModel model = step_of(chain(), 3);
  const SimulatedStep step = simulate(model, kept_of(model, {0}));
  // At the end of forward v1 is gone; it is there again from before node 4 on.
  EXPECT_EQ(step.bytes, (Bytes{64, 192, 256, 128, 256, 192}));
  EXPECT_EQ(step.again, Again{1});
  EXPECT_EQ(step.milliseconds, 33);
}

TEST(Simulate, RunsChainsAgainOnceForAllWhoReadThem) {
  const StepModel model = step_of(chain(), 3);
  const SimulatedStep step = simulate(model, kept_of(model, {}));
  EXPECT_EQ(step.bytes, (Bytes{64, 192, 192, 64, 256, 192}));
  EXPECT_EQ(step.again, (Again{0, 1}));
  EXPECT_EQ(step.milliseconds, 34);
}

TEST(Simulate, KeepsWhatOnlyARunReads) {
  std::vector<StepNode> nodes = chain();
  nodes[5].reads = {3};  // nobody in backward asks for v0 but v1's node
  const StepModel model = step_of(nodes, 3);
  EXPECT_EQ(simulate(model, kept_of(model, {0})).bytes, (Bytes{64, 192, 256, 128, 192, 128}));
  EXPECT_EQ(simulate(model, kept_of(model, {1})).bytes, (Bytes{64, 192, 192, 192, 192, 128}));
}

TEST(Simulate, LetsWhatOnlyBackwardNeedsRunThereAlone) {
  std::vector<StepNode> nodes = chain();
  nodes.insert(nodes.begin() + 3,
               {.reads = {0}, .makes = {640}, .milliseconds = 32});  // v3, that nobody in forward reads
  nodes[5].reads = {1, 3};
  nodes[6].reads = {0, 4};
  const StepModel model = step_of(nodes, 4);
  const SimulatedStep kept = simulate(model, kept_of(model, {0, 1, 3})),
                      dropped = simulate(model, kept_of(model, {0, 1}));
  EXPECT_EQ(kept.milliseconds, 63);
  EXPECT_EQ(kept.bytes, (Bytes{64, 192, 256, 896, 896, 896, 192}));
  EXPECT_EQ(dropped.milliseconds, 63);
  EXPECT_EQ(dropped.again, Again{3});
  EXPECT_EQ(dropped.bytes, (Bytes{64, 192, 256, 256, 256, 896, 192}));
}

TEST(Simulate, CountsATakeoverOnceAndOnlyWhereNobodyReadsTheBytesLater) {
  StepModel model = step_of(chain(), 3);
  model.values[1].bytes = 64;
  model.takeovers[1] = {{1, 0}};  // v1 may take v0's bytes
  EXPECT_EQ(simulate(model, kept_of(model, {0, 1})).bytes, (Bytes{64, 128, 192, 192, 192, 192}));  // v0 is kept
  EXPECT_EQ(simulate(model, kept_of(model, {1})).bytes, (Bytes{64, 64, 128, 128, 128, 192}));
  // Run again, v0 is read by node 5 as well.
  EXPECT_EQ(simulate(model, kept_of(model, {})).bytes, (Bytes{64, 64, 128, 64, 192, 192}));
}

TEST(Simulate, CountsScratchCopiesAndWhatIsHeld) {
  StepModel model = step_of(chain(), 3);
  model.scratch[1] = 1000;
  model.copies[1] = 300;
  model.fixed = {{.first = 1, .last = 1, .bytes = 300}};
  model.values[3].held_until = 5;
  model.values[2].held_until = 4;
  const SimulatedStep step = simulate(model, kept_of(model, {0}));
  // The second run of node 1 lies in the slot of node 4: v0, v1 again, v2 held, scratch and copies.
  EXPECT_EQ(step.bytes, (Bytes{64, 192 + 1300, 256, 128, 256 + 1300, 192}));
}

TEST(Simulate, KeepsWhatIsPackedInFewerBytesBetweenItsHalves) {
  StepModel model = step_of(chain(), 3);
  model.values[1].packed_bytes = 16;
  model.values[1].packing_milliseconds = 0.5;
  Kept kept = kept_of(model, {0});
  kept[1] = Keep::kPacked;
  const SimulatedStep step = simulate(model, kept);
  // Packed right behind node 1; whole until node 2 and again from before node 4, where the packed bytes end.
  EXPECT_EQ(step.bytes, (Bytes{64, 192, 64 + 128 + 16 + 64, 64 + 16 + 64, 256, 192}));
  EXPECT_EQ(step.packed, std::vector<int32_t>{1});
  EXPECT_EQ(step.again, Again{});
  EXPECT_EQ(step.milliseconds, 31.5);
}

TEST(Simulate, UnpacksBeforeARunThatReadsItAndPacksNothingThatNobodyReads) {
  StepModel model = step_of(chain(), 3);
  for (size_t value : {0, 2}) {
    model.values[value].packed_bytes = 8;
    model.values[value].packing_milliseconds = 0.5;
  }
  Kept kept = kept_of(model, {});
  kept[0] = kept[2] = Keep::kPacked;  // backward asks for v0 and v1; nobody but YieldOp for v2
  const SimulatedStep step = simulate(model, kept);
  EXPECT_EQ(step.packed, std::vector<int32_t>{0});
  EXPECT_EQ(step.again, Again{1});
  EXPECT_EQ(step.bytes, (Bytes{64, 64 + 8 + 128, 8 + 192, 8 + 64, 256, 192}));
  EXPECT_EQ(step.milliseconds, 33.5);
}

TEST(Simulate, TellsOfAChainThatIsTooDeepForTheRewriter) {
  std::vector<StepNode> nodes = {{.reads = {}, .makes = {64}}};
  for (int32_t i = 1; i < 3000; ++i) nodes.push_back({.reads = {i - 1}, .makes = {64}});
  nodes.push_back({.reads = {2999}, .makes = {}});
  nodes.push_back({.reads = {2999}, .makes = {64}});
  const StepModel model = step_of(nodes, 3000);
  EXPECT_TRUE(simulate(model, kept_of(model, {})).is_deep);
  EXPECT_FALSE(simulate(model, kept_of(model, {1500})).is_deep);
}

}  // namespace
}  // namespace lowtide
