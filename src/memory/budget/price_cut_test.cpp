#include "memory/budget/price_cut.h"

#include <gtest/gtest.h>

#include <cmath>

#include "memory/budget/every_plan.h"
#include "memory/budget/raise_bound.h"

namespace lowtide {
namespace {

BytePrices draw_prices(SplitMix& rng, const StepModel& model) {
  BytePrices prices(static_cast<size_t>(model.positions), 0);
  const double level = std::pow(10.0, rng.unit() * 4 - 5);
  const bool at_one = rng.chance(30);
  for (double& price : prices) price = at_one || rng.chance(50) ? 0 : level * rng.unit();
  if (at_one) prices[rng.below(static_cast<uint32_t>(prices.size()))] = level;
  return prices;
}

TEST(PriceCut, ProvesNoMoreThanTheBestOfAllPlansTakes) {
  int asked = 0, proven = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const StepModel model = draw_step(seed, 9);
    const std::vector<TriedPlan> plans = every_plan(model);
    PriceCut cut(model);
    BoundRaiser raiser(cut);  // with what it has learnt for other budgets
    SplitMix rng(seed);
    for (int i = 0; i < 20; ++i) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << i);
      const int64_t budget = plans[rng.below(static_cast<uint32_t>(plans.size()))].step.peak_bytes;
      const double best = least_extra(model, plans, budget);
      const BytePrices prices = draw_prices(rng, model);
      const double bound = cut.bound(prices, budget);
      EXPECT_LE(bound, best + 1e-9);
      const ProvenTime raised = raiser.raise(prices, budget, 2 * best + 1, 60);
      EXPECT_GE(raised.milliseconds, bound - 1e-6);
      EXPECT_LE(raised.milliseconds, best + 1e-9);
      EXPECT_EQ(raised.milliseconds, cut.bound(raised.prices, budget));
      asked += best > 0.1;
      proven += best > 0.1 && raised.milliseconds > 0.2 * best;
    }
  }
  EXPECT_GT(asked, 300);
  EXPECT_GT(proven, asked / 10) << "of " << asked;
}

TEST(PriceCut, KeepsWhateverCostsTimeWhereBytesCostNothing) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const StepModel model = draw_step(seed, 12);
    const Kept kept = PriceCut(model).choose(BytePrices(static_cast<size_t>(model.positions), 0));
    EXPECT_NEAR(extra_of(model, simulate(model, kept)), 0, 1e-9) << "seed " << seed;
  }
}

TEST(PriceCut, GivesUpAllThatMayRunAgainWhereBytesCostMoreThanTime) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    StepModel model = draw_step(seed, 12);
    for (ModelValue& value : model.values) {
      value.may_run_again = value.is_optional;
      value.packed_bytes = 0;
    }
    const Kept kept = PriceCut(model).choose(BytePrices(static_cast<size_t>(model.positions), 1e6));
    for (size_t i = 0; i < kept.size(); ++i) {
      if (kept[i] == Keep::kAgain) continue;
      const ModelValue& value = model.values[i];
      // Between its readers lies nothing.
      EXPECT_LE(value.first_in_backward, value.last_in_forward + 1) << "seed " << seed << ", value " << i;
    }
  }
}

TEST(PriceCut, TakesTheCheaperEndOfAChain) {
  // v1 costs 2 ms and 128 bytes to keep, v0 64 bytes; both are made again from v0 where v0 is kept.
  const StepModel model = step_of({{.reads = {}, .makes = {64}, .milliseconds = 50},
                                   {.reads = {0}, .makes = {128}, .milliseconds = 2},
                                   {.reads = {1}, .makes = {64}, .milliseconds = 4},
                                   {.reads = {2}, .makes = {}},
                                   {.reads = {1}, .makes = {64}, .milliseconds = 8}},
                                  3);
  PriceCut cut(model);
  BytePrices prices(5, 0);
  const auto kept_at = [&](double price) {
    prices[3] = price;
    const Kept kept = cut.choose(prices);
    return std::pair(kept[0] == Keep::kWhole, kept[1] == Keep::kWhole);
  };
  EXPECT_EQ(kept_at(1.9 / 64), std::pair(false, true));    // 128 bytes cost less than 64 and 2 ms
  EXPECT_EQ(kept_at(2.1 / 64), std::pair(true, false));    // v1 again from v0
  EXPECT_EQ(kept_at(51.0 / 64), std::pair(false, false));  // all again
}

TEST(PriceCut, PacksWhereFewerBytesAreWorthTheTime) {
  StepModel model = step_of({{.reads = {}, .makes = {640}, .milliseconds = 50},
                             {.reads = {0}, .makes = {64}, .milliseconds = 1},
                             {.reads = {1}, .makes = {}},
                             {.reads = {0}, .makes = {64}, .milliseconds = 8}},
                            2);
  model.values[0].packed_bytes = 64;
  model.values[0].packing_milliseconds = 3;
  PriceCut cut(model);
  BytePrices prices(4, 0);
  const auto way_at = [&](double price) {
    prices[2] = price;
    return cut.choose(prices)[0];
  };
  EXPECT_EQ(way_at(2.9 / 576), Keep::kWhole);
  EXPECT_EQ(way_at(3.1 / 576), Keep::kPacked);
  EXPECT_EQ(way_at(46.9 / 64), Keep::kPacked);
  EXPECT_EQ(way_at(47.1 / 64), Keep::kAgain);  // 50 ms are less than 3 ms and the 64 bytes
  model.values[0].may_run_again = false;
  prices[2] = 1;
  EXPECT_EQ(PriceCut(model).choose(prices)[0], Keep::kPacked);
}

}  // namespace
}  // namespace lowtide
