// What graphs of a step need together, against a slow reference; which of their plans serve a budget.
#include "session/step_plans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace lowtide {
namespace {

constexpr int64_t kKiB = 1024;

// Bytes at each moment, by what each need says of itself.
int64_t slow_peak(const std::vector<StepNeed>& needs) {
  const size_t count = needs.size();
  int64_t most = 0;
  for (size_t moment = 0; moment < 2 * count; ++moment) {  // forwards, then backwards
    int64_t there = 0;
    std::set<int64_t> graphs;
    for (size_t i = 0; i < count; ++i) {
      const StepShare& share = needs[i].share;
      const size_t backward = 2 * count - 1 - i;
      if (share.is_pinned || (share.is_pending && moment <= backward)) there += share.kept;
      const bool has_gradients = share.is_pending && !share.is_pinned && moment >= backward;
      if (has_gradients && graphs.insert(needs[i].graph).second)
        for (const int64_t bytes : share.late) there += bytes;
    }
    most = std::max(most, there);
  }
  int64_t passing = 0;
  for (const StepNeed& need : needs)
    passing = std::max(passing, need.share.passing + (need.share.is_pending ? 0 : need.share.kept));
  return most + passing + bytes_beside(needs);
}

class Needs {
 public:
  explicit Needs(unsigned seed) : random_(seed) {}

  int64_t bytes() { return kKiB * std::uniform_int_distribution<int64_t>(0, 64)(random_); }
  StepNeed one(int64_t graph) {
    MemoryReport report{.output_bytes = bytes(), .external_bytes = bytes(), .kept_bytes = bytes()};
    if (coin()) {
      report.passing_bytes = bytes();
      report.late_blocks = {bytes(), bytes()};
    }
    return need_of(report, std::uniform_int_distribution<int>(0, 4)(random_) > 0, graph);
  }
  bool coin() { return std::uniform_int_distribution<int>(0, 1)(random_) == 1; }

 private:
  std::mt19937 random_;
};

TEST(StepPlans, APeakIsThatOfTheFullestMoment) {
  Needs random(1);
  for (int run = 0; run < 300; ++run) {
    std::vector<StepNeed> needs;
    for (int64_t i = 0; i < 1 + run % 6; ++i) needs.push_back(i > 0 && random.coin() ? needs.front() : random.one(i));
    EXPECT_EQ(peak_of(needs), slow_peak(needs));
    int64_t most = bytes_beside(needs);
    for (const StepNeed& need : needs) most += need.standing_bytes() - need.output_bytes + need.share.passing;
    EXPECT_LE(peak_of(needs), most);
  }
  EXPECT_EQ(peak_of({}), 0);
}

// Kept, and gradients of its own unless it is whole.
StepOption option(int64_t graph, bool in_two, int64_t kept, int64_t passing, std::vector<int64_t> late,
                  int32_t plan = 0, double extra = 0) {
  MemoryReport report{.output_bytes = kKiB, .kept_bytes = kept * kKiB, .passing_bytes = passing * kKiB};
  for (const int64_t bytes : late) report.late_blocks.push_back(bytes * kKiB);
  return {need_of(report, true, graph), in_two, plan, extra};
}

TEST(StepPlans, GraphsThatWaitShareTheRoomToWorkIn) {
  const StepNeed whole = option(0, false, 100, 0, {}).need, in_two = option(0, true, 40, 50, {20}).need;
  EXPECT_EQ(kept_in_two({&whole, 1}, {&in_two, 1}), std::vector<bool>{false}) << "alone it needs 110";
  const std::vector<StepNeed> twice = {whole, whole}, twice_in_two = {in_two, in_two};
  EXPECT_EQ(kept_in_two(twice, twice_in_two), (std::vector<bool>{true, true})) << "200, or 40 + 40 + 20 + 50";
  EXPECT_EQ(peak_of(twice_in_two), (40 + 40 + 20 + 50 + 2) * kKiB) << "gradients of one graph are added up";
}

std::map<int64_t, std::vector<StepOption>> two_graphs() {
  return {{3,
           {option(0, false, 100, 0, {}), option(0, true, 80, 10, {10}), option(0, false, 60, 0, {}, 1, 2.0),
            option(0, true, 50, 10, {10}, 1, 2.0)}},
          {5,
           {option(1, false, 100, 0, {}), option(1, true, 80, 10, {10}), option(1, false, 70, 0, {}, 1, 9.0),
            option(1, true, 60, 10, {10}, 1, 9.0)}}};
}

TEST(StepPlans, FewerBytesCostMoreTime) {
  StepFrontier frontier({3, 5}, two_graphs());
  const StepFrontier::Point* point = frontier.within(INT64_MAX);
  ASSERT_NE(point, nullptr);
  const int64_t most = point->size_bytes;
  for (const StepOption& one : point->chosen) EXPECT_EQ(one.plan, 0) << "what is enough changes no plan";
  double before = 0;
  int64_t size_before = most;
  for (int64_t budget = most; (point = frontier.within(budget)) != nullptr; budget = point->size_bytes - 1) {
    std::vector<StepNeed> needs;
    double extra = 0;
    for (const StepOption& one : point->chosen) {
      needs.push_back(one.need);
      extra += one.extra_milliseconds;
    }
    EXPECT_EQ(point->size_bytes, point->arena->size_bytes() + bytes_beside(needs));
    EXPECT_GE(point->size_bytes, peak_of(needs));
    EXPECT_LE(point->size_bytes, std::min(budget, size_before));
    EXPECT_GE(extra, before) << "the cheaper change comes first";
    before = extra;
    size_before = point->size_bytes;
  }
  EXPECT_EQ(before, 11.0);
  EXPECT_EQ(frontier.floor_bytes(), size_before);
  EXPECT_LT(frontier.floor_bytes(), most);
}

// The least of all choices, where a budget asks for it.
TEST(StepPlans, TheFloorIsThatOfAllChoices) {
  const std::map<int64_t, std::vector<StepOption>> options = two_graphs();
  const std::vector<int64_t> places = {3, 5, 3};
  int64_t least = INT64_MAX;
  for (const StepOption& a : options.at(3))
    for (const StepOption& b : options.at(5)) {
      const std::vector<StepNeed> needs = {a.need, b.need, a.need};
      least = std::min(least, arena_of(needs)->size_bytes() + bytes_beside(needs));
    }
  StepFrontier frontier(places, options);
  EXPECT_EQ(frontier.within(least - 1), nullptr);
  EXPECT_EQ(frontier.floor_bytes(), least);
  const StepFrontier::Point* point = frontier.within(least);
  ASSERT_NE(point, nullptr);
  EXPECT_EQ(point->chosen[0].plan, point->chosen[2].plan) << "a graph that comes again has the same plan";
}

}  // namespace
}  // namespace lowtide
