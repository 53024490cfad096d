#include "memory/budget/search.h"

#include <gtest/gtest.h>

#include <map>

#include "memory/budget/every_plan.h"

namespace lowtide {
namespace {

std::vector<FoundPlan> search(const StepModel& model) {
  return search_plans(model, std::vector<int32_t>(model.values.size(), -1));
}

TEST(Search, FindsPlansThatNeedLessAndLessForMoreAndMore) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const StepModel model = draw_step(seed, 40);
    const std::vector<FoundPlan> plans = search(model);
    const SimulatedStep by_default = simulate(model, kept_by_default(model));
    ASSERT_FALSE(plans.empty());
    EXPECT_LE(plans.front().milliseconds, by_default.milliseconds);
    EXPECT_LE(plans.front().peak_bytes, by_default.peak_bytes);
    for (size_t i = 0; i < plans.size(); ++i) {
      const SimulatedStep step = simulate(model, plans[i].kept);
      EXPECT_EQ(step.peak_bytes, plans[i].peak_bytes);
      EXPECT_EQ(step.milliseconds, plans[i].milliseconds);
      for (int32_t position : step.again)
        for (int32_t made : model.makes[static_cast<size_t>(position)])
          EXPECT_TRUE(model.values[static_cast<size_t>(made)].may_run_again) << "value " << made;
      for (int32_t packed : step.packed) EXPECT_GT(model.values[static_cast<size_t>(packed)].packed_bytes, 0);
      if (i == 0) continue;
      EXPECT_LT(plans[i].peak_bytes, plans[i - 1].peak_bytes);
      EXPECT_GT(plans[i].milliseconds, plans[i - 1].milliseconds);
    }
  }
}

TEST(Search, FindsTheSamePlansAgain) {
  const StepModel model = draw_step(3, 60);
  const std::vector<FoundPlan> first = search(model), second = search(model);
  ASSERT_EQ(first.size(), second.size());
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].kept, second[i].kept);
    EXPECT_EQ(first[i].prices, second[i].prices);
  }
}

// At every budget that a plan meets exactly.
TEST(Search, FindsTheBestOfAllPlansOfASmallStep) {
  int budgets = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const StepModel model = draw_step(seed, 11);
    std::map<int64_t, double> best;  // by peak
    for (const TriedPlan& plan : every_plan(model)) {
      const double extra = extra_of(model, plan.step);
      const auto at = best.emplace(plan.step.peak_bytes, extra).first;
      at->second = std::min(at->second, extra);
    }
    const std::vector<FoundPlan> found = search(model);
    EXPECT_EQ(found.back().peak_bytes, best.begin()->first);
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [budget, extra] : best) {
      least = std::min(least, extra);
      double ours = std::numeric_limits<double>::infinity();
      for (const FoundPlan& each : found)
        if (each.peak_bytes <= budget) ours = std::min(ours, extra_of(model, simulate(model, each.kept)));
      ++budgets;
      EXPECT_LE(ours, least + 1e-9) << "at " << budget << " bytes";
    }
  }
  EXPECT_GT(budgets, 400);
}

}  // namespace
}  // namespace lowtide
