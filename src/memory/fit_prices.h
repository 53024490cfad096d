// Rates from measured times.
#pragma once

#include <span>

#include "memory/prices.h"

namespace lowtide {

struct KernelTime {
  KernelClass kernels = KernelClass::kFree;
  DType dtype = DType::kF32;
  CostAt cost;
  double milliseconds = 0;
};

// `base` with the rates of those classes and dtypes of which there are times. Of a part that the times do not tell
// (nothing drawn, all bytes near) the rate of `base` stays.
//
// The rates make the sum of (predicted - measured)^2 / measured least: so the sum of what is predicted is near that of
// what is measured, whose larger times count most, and small ones count too.
Prices fit_prices(std::span<const KernelTime> times, const Prices& base);

}  // namespace lowtide
