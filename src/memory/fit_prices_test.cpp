#include "memory/fit_prices.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace lowtide {
namespace {

// Times that follow rates, each a bit off.
std::vector<KernelTime> times_of(const Prices& prices, KernelClass kernels, DType dtype, double noise) {
  std::vector<KernelTime> times;
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  for (int i = 0; i < 400; ++i) {
    KernelTime time{kernels, dtype, {}, 0};
    time.cost.bytes = std::exp(std::uniform_real_distribution<double>(5, 20)(random));
    time.cost.flops = time.cost.bytes * std::uniform_real_distribution<double>(0, 100)(random);
    time.cost.drawn = i % 2 ? time.cost.bytes / 8 : 0;
    time.milliseconds = prices.milliseconds(kernels, dtype, time.cost) * std::exp(noise * normal(random));
    times.push_back(time);
  }
  return times;
}

Prices known_prices() {
  Prices prices;
  prices.rates[{KernelClass::kAttention, DType::kF32}] = {3, 250, 120, 30, 1500};
  return prices;
}

TEST(FitPrices, FindsTheRatesThatTimesFollow) {
  const Prices known = known_prices();
  const Prices fitted = fit_prices(times_of(known, KernelClass::kAttention, DType::kF32, 0), Prices());
  const Rates& found = fitted.rates.at({KernelClass::kAttention, DType::kF32});
  EXPECT_NEAR(found.call_us, 3, 0.01);
  EXPECT_NEAR(found.gflops, 250, 1);
  EXPECT_NEAR(found.near_gb, 120, 1);
  EXPECT_NEAR(found.far_gb, 30, 0.3);
  EXPECT_NEAR(found.drawn_per_us, 1500, 10);
}

TEST(FitPrices, SumsUpToWhatWasMeasured) {
  const auto times = times_of(known_prices(), KernelClass::kAttention, DType::kF32, 0.2);
  const Prices fitted = fit_prices(times, Prices());
  double measured = 0, predicted = 0;
  for (const KernelTime& time : times) {
    measured += time.milliseconds;
    predicted += fitted.milliseconds(time.kernels, time.dtype, time.cost);
  }
  EXPECT_NEAR(predicted / measured, 1, 0.05);
}

TEST(FitPrices, LeavesAloneWhatTheTimesDoNotTell) {
  const Prices base;
  EXPECT_EQ(fit_prices({}, base), base);
  // All bytes near, no flops, nothing drawn.
  std::vector<KernelTime> times;
  for (double bytes : {1e3, 1e4, 1e5})
    times.push_back({KernelClass::kCopy, DType::kF32, {.bytes = bytes}, 1e-3 * (2 + bytes / 50e3)});
  const Prices fitted = fit_prices(times, base);
  const Rates &before = base.rates.at({KernelClass::kCopy, DType::kF32}),
              &found = fitted.rates.at({KernelClass::kCopy, DType::kF32});
  EXPECT_NEAR(found.call_us, 2, 0.01);
  EXPECT_NEAR(found.near_gb, 50, 0.1);
  EXPECT_EQ(found.far_gb, std::min(before.far_gb, found.near_gb));
  EXPECT_EQ(found.gflops, before.gflops);
  EXPECT_EQ(found.drawn_per_us, before.drawn_per_us);
  Prices others = fitted;
  others.rates[{KernelClass::kCopy, DType::kF32}] = before;
  EXPECT_EQ(others, base);
  EXPECT_EQ(fit_prices(std::span(times).first(2), base), base) << "two times tell nothing";
}

TEST(FitPrices, NeverMakesWhatIsLargerCheaper) {
  // Large ones were faster than small ones: noise.
  std::vector<KernelTime> times;
  for (double bytes : {1e3, 1e5, 1e7, 1e8})
    times.push_back({KernelClass::kCopy, DType::kF32, {.bytes = bytes}, 10 / std::sqrt(bytes)});
  const Prices fitted = fit_prices(times, Prices());
  EXPECT_EQ(Prices::parse(fitted.text()), fitted);
  double before = 0;
  for (double bytes = 1; bytes < 1e10; bytes *= 3) {
    const double now = fitted.milliseconds(KernelClass::kCopy, DType::kF32, {.bytes = bytes});
    EXPECT_GE(now, before);
    before = now;
  }
}

}  // namespace
}  // namespace lowtide
