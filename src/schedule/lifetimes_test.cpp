#include "schedule/lifetimes.h"

#include <gtest/gtest.h>

#include "ir/parse.h"
#include "schedule/live_bytes.h"

namespace lowtide {
namespace {

constexpr std::string_view kTraining = R"(
graph @g(%x: f32[b, 8] input, %p: f32[4, 8] param, %n: f32[8] buffer) where b in [1, 64] {
  %s: f32[b, 8] = Swish %x
  %t: f32[8, b] = Transpose(perm=[1, 0]) %s
  %m: f32[8] = Neg %n
  %zero: f32[b, 4] = ConstantOfShape(dtype=f32, shape=[b, 4], value=0.0)
  %z: f32[b, 4] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %s, %p, %zero
  %dz: f32[b, 4] = YieldOp(grads=[0]) %z
  %dp: f32[4, 8] = Gemm(alpha=1.0, beta=1.0, transA=true, transB=true) %dz, %t
  %late: f32[8] = Neg %m
  return %m update %n, %dp gradient %p
}
)";

struct Expected {
  std::string_view value, owner;
  Holder holder;
  int32_t first, last;
};

TEST(Lifetimes, AreThoseOfTheOwnersOfBytes) {
  const Graph graph = parse(kTraining);
  const Lifetimes lifetimes = find_lifetimes(graph, graph.order());
  const Expected expected[] = {
      {"x", "x", Holder::kCaller, -1, 0},
      {"s", "s", Holder::kArena, 0, 6},  // backward reads it through its transpose
      {"t", "s", Holder::kArena, 0, 6},
      {"m", "m", Holder::kArena, 2, 7},  // an update, and read later
      {"zero", "zero", Holder::kNowhere, 3, 4},
      {"z", "z", Holder::kOutput, 4, 8},
      {"dz", "dz", Holder::kCaller, 5, 6},
      {"dp", "dp", Holder::kGradient, 6, 8},
      {"late", "late", Holder::kArena, 7, 7},  // nobody reads it
  };
  for (const Expected& each : expected) {
    const ValueId value = graph.find_value(each.value);
    EXPECT_EQ(graph.value(lifetimes.owner(value)).name, each.owner) << each.value;
    EXPECT_EQ(lifetimes.of(value).holder, each.holder) << each.value;
    EXPECT_EQ(lifetimes.of(value).first, each.first) << each.value;
    EXPECT_EQ(lifetimes.of(value).last, each.last) << each.value;
  }
}

TEST(Lifetimes, OfAnUpdateLastToTheEndOfForward) {
  const Graph graph = parse(R"(
graph @g(%p: f32[8] param, %n: f32[8] buffer) {
  %m: f32[8] = Neg %n
  %z: f32[8] = Neg %p
  %dz: f32[8] = YieldOp(grads=[0]) %z
  %dp: f32[8] = Neg %dz
  return %m update %n, %dp gradient %p
}
)");
  EXPECT_EQ(find_lifetimes(graph, graph.order()).of(graph.find_value("m")).last, 2);
}

TEST(Lifetimes, AViewWithBytesOfItsOwnOwnsThem) {
  const Graph graph = parse(kTraining);
  std::vector<int32_t> buffers(graph.value_count(), 0);
  buffers[graph.find_value("t").at()] = 1;  // the plan copied
  const std::vector<ValueId> owners = find_owners(graph, buffers);
  EXPECT_EQ(owners[graph.find_value("t").at()], graph.find_value("t"));
}

TEST(LiveBytes, CountTheArenaAlone) {
  const Graph graph = parse(kTraining);
  const Lifetimes lifetimes = find_lifetimes(graph, graph.order());
  const std::vector<int64_t> bytes = arena_bytes(graph, lifetimes, {{"b", 3}});
  const Timeline timeline = live_bytes(lifetimes, bytes, graph.order().size());
  const int64_t s = 128, m = 64, dp = 128, late = 64;  // s: 3 x 8 x 4 bytes, padded
  const int64_t expected[] = {s, s, s + m, s + m, s + m, s + m, s + m + dp, m + dp + late};
  for (int32_t i = 0; i < 8; ++i) EXPECT_EQ(timeline.bytes_at(i), expected[i]) << "position " << i;
  EXPECT_EQ(timeline.peak(), s + m + dp);
  EXPECT_EQ(timeline.peak_position(), 6);
}

}  // namespace
}  // namespace lowtide
