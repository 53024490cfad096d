// Prices that prove more: where the choices that are cheapest at the prices need more than the budget a byte gets
// dearer, where they need less, cheaper.
//
// A proximal bundle method (C. Lemaréchal, "Bundle methods in nonsmooth optimization", 1978). Each choice that a cut
// has found, a time and bytes by position, is at any prices and for any budget an upper limit of what those prices
// prove, a plane:
//
//   proven │    ╲ choice 2             The next prices are where the lowest of all planes is highest, less what it
//          │ choice 1 ╲___╱            costs to go far from the best prices so far. They are asked next, and give a
//          │      ╱▔▔▔▔╲╱▔╲            further plane.
//          └────────────────▶ price
#pragma once

#include "memory/budget/price_cut.h"

namespace lowtide {

struct ProvenTime {
  double milliseconds = 0;  // that running nodes again takes at least
  BytePrices prices;        // that prove it
};

class BoundRaiser {
 public:
  explicit BoundRaiser(PriceCut& cut);

  // From `start` on, so many cuts at most. `known`: what running nodes again takes in a plan that keeps within the
  // budget. Choices found for one budget are used for the next as well.
  ProvenTime raise(const BytePrices& start, int64_t budget, double known, int cuts);

 private:
  struct Choice {
    double milliseconds = 0;    // of what runs again
    std::vector<double> bytes;  // at each of positions_
    double share = 0;           // in the plane that the next prices follow
  };
  using Prices = std::vector<double>;  // at each of positions_

  double ask(const Prices& prices);
  double proven_by(const Choice& choice, const Prices& prices) const;
  // Of the lowest plane there.
  double find_next(const Prices& center, double reach, Prices& next);
  void forget_idle();
  BytePrices spread_out(const Prices& prices) const;

  PriceCut& cut_;
  const std::vector<int32_t> positions_;  // where a price may prove something
  std::vector<Choice> choices_;
  int64_t budget_ = 0;
};

}  // namespace lowtide
