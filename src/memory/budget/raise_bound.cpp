#include "memory/budget/raise_bound.h"

#include <algorithm>

namespace lowtide {

namespace {

// Steps without a better bound until they get shorter.
constexpr int kPatience = 4;

}  // namespace

ProvenTime raise_bound(PriceCut& cut, BytePrices start, int64_t budget, double known, int steps) {
  ProvenTime best{cut.bound(start, budget), start};
  double now = best.milliseconds, length = 1;
  int waited = 0;
  for (int step = 0; step < steps && best.milliseconds < known; ++step) {
    const std::vector<int64_t> bytes = cut.bytes_at_bound();
    double square = 0;
    for (size_t i = 0; i < start.size(); ++i) {
      const double over = static_cast<double>(bytes[i] - budget);
      if (over > 0 || start[i] > 0) square += over * over;
    }
    if (square == 0) break;
    const double each = length * std::max(known - now, 0.0) / square;
    for (size_t i = 0; i < start.size(); ++i)
      start[i] = std::max(0.0, start[i] + each * static_cast<double>(bytes[i] - budget));
    now = cut.bound(start, budget);
    if (now > best.milliseconds) {
      best = {now, start};
      waited = 0;
    } else if (++waited == kPatience) {
      waited = 0;
      length /= 2;
    }
  }
  return best;
}

}  // namespace lowtide
