#include "memory/fit_prices.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "base/check.h"

namespace lowtide {

namespace {

// A time in µs is linear in these, with coefficients that are none below 0.
enum Part { kCall, kKiloFlops, kKiloBytes, kKiloBytesFar, kDrawn, kParts };
using Parts = std::array<double, kParts>;

constexpr size_t kFewestTimes = 3;

Parts parts_of(const KernelTime& time, const Prices& prices) {
  const double bytes = time.cost.bytes;
  return {1, time.cost.flops / 1e3, bytes / 1e3, bytes / 1e3 * far_share(prices, bytes), time.cost.drawn};
}

// Non-negative least squares by coordinate descent on the normal equations, which are five by five.
Parts least_squares(std::span<const Parts> rows, std::span<const double> micros) {
  Parts scale{}, right{}, found{};
  std::array<Parts, kParts> normal{};
  for (size_t r = 0; r < rows.size(); ++r)
    for (int i = 0; i < kParts; ++i) scale[i] += rows[r][i] * rows[r][i] / micros[r];
  for (double& each : scale) each = each > 0 ? std::sqrt(each) : 1;
  for (size_t r = 0; r < rows.size(); ++r)
    for (int i = 0; i < kParts; ++i) {
      const double scaled = rows[r][i] / scale[i];
      right[i] += scaled;  // times micros, divided by micros
      for (int j = 0; j < kParts; ++j) normal[i][j] += scaled * rows[r][j] / scale[j] / micros[r];
    }
  for (int round = 0; round < 20000; ++round) {
    double moved = 0;
    for (int i = 0; i < kParts; ++i) {
      if (normal[i][i] <= 0) continue;
      double rest = right[i];
      for (int j = 0; j < kParts; ++j) rest -= normal[i][j] * found[j];
      const double next = std::max(0.0, found[i] + rest / normal[i][i]);
      moved = std::max(moved, std::abs(next - found[i]));
      found[i] = next;
    }
    if (moved < 1e-12 * (1 + found[kCall])) break;
  }
  for (int i = 0; i < kParts; ++i) found[i] /= scale[i];
  return found;
}

// Three digits: more would say more than a measurement does.
double rounded(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return std::strtod(text.data(), nullptr);
}

double rate(double cost) { return cost > 1e-12 ? rounded(1 / cost) : std::numeric_limits<double>::infinity(); }

}  // namespace

Prices fit_prices(std::span<const KernelTime> times, const Prices& base) {
  struct Samples {
    std::vector<Parts> rows;
    std::vector<double> micros;
  };
  std::map<std::pair<KernelClass, DType>, Samples> samples;
  for (const KernelTime& time : times) {
    if (time.kernels == KernelClass::kFree || !(time.milliseconds > 0)) continue;
    Samples& of_class = samples[{time.kernels, time.dtype}];
    of_class.rows.push_back(parts_of(time, base));
    of_class.micros.push_back(time.milliseconds * 1e3);
  }
  Prices fitted = base;
  for (const auto& [key, of_class] : samples) {
    if (of_class.rows.size() < kFewestTimes) continue;
    const Parts found = least_squares(of_class.rows, of_class.micros);
    const auto shown = [&](Part part) {
      return std::any_of(of_class.rows.begin(), of_class.rows.end(), [&](const Parts& row) { return row[part] > 0; });
    };
    auto known = base.rates.find(key);
    if (known == base.rates.end()) known = base.rates.find({key.first, DType::kF32});
    LT_CHECK(known != base.rates.end(), "no rates for ", name(key.first));
    Rates rates = known->second;
    rates.call_us = rounded(found[kCall]);
    if (shown(kKiloFlops)) rates.gflops = rate(found[kKiloFlops]);
    if (shown(kKiloBytes)) rates.near_gb = rate(found[kKiloBytes]);
    rates.far_gb =
        shown(kKiloBytesFar) ? rate(found[kKiloBytes] + found[kKiloBytesFar]) : std::min(rates.far_gb, rates.near_gb);
    if (shown(kDrawn)) rates.drawn_per_us = rate(found[kDrawn]);
    fitted.rates[key] = rates;
  }
  return fitted;
}

}  // namespace lowtide
