#include "memory/budget/raise_bound.h"

#include <algorithm>
#include <numeric>

namespace lowtide {

namespace {

// Choices remembered: more would take longer than to find them anew.
constexpr size_t kMostChoices = 48;
// Exchanges of shares between two choices for each cut.
constexpr int kExchanges = 60;
// Near enough to what a plan takes, as a share of it.
constexpr double kNear = 0.01;
// Of the rise that the planes promise: with as much the next prices become the best.
constexpr double kRisenEnough = 0.1, kRisenWell = 0.5;
// Cuts without such a rise until prices stay nearer.
constexpr int kPatience = 4;
// What the planes promise is nothing, as a share of what a plan takes, though prices went farther: so often it ends.
constexpr double kNothing = 0.001;
constexpr int kEnds = 3;

}  // namespace

BoundRaiser::BoundRaiser(PriceCut& cut) : cut_(cut), positions_(cut.decisive_positions()) {}

BytePrices BoundRaiser::spread_out(const Prices& prices) const {
  BytePrices result(cut_.decided_by().size(), 0);
  for (size_t i = 0; i < positions_.size(); ++i) result[static_cast<size_t>(positions_[i])] = prices[i];
  return result;
}

double BoundRaiser::proven_by(const Choice& choice, const Prices& prices) const {
  double sum = choice.milliseconds;
  for (size_t i = 0; i < prices.size(); ++i) sum += prices[i] * (choice.bytes[i] - static_cast<double>(budget_));
  return sum;
}

double BoundRaiser::ask(const Prices& prices) {
  const double proven = cut_.bound(spread_out(prices), budget_);
  const std::vector<int64_t> bytes = cut_.bytes_at_bound();
  Choice choice;
  for (int32_t position : positions_) choice.bytes.push_back(static_cast<double>(bytes[static_cast<size_t>(position)]));
  choice.milliseconds = proven - proven_by(choice, prices);
  choices_.push_back(std::move(choice));
  return proven;
}

// The dual of the step: shares of the choices, 1 in all, so that the plane which they make together is lowest where it
// is highest. Shares move from the choice with the highest plane to that with the lowest.
double BoundRaiser::find_next(const Prices& center, double reach, Prices& next) {
  const size_t count = positions_.size();
  std::vector<double> slope(count, 0);
  for (const Choice& choice : choices_)
    for (size_t i = 0; i < count && choice.share > 0; ++i) slope[i] += choice.share * choice.bytes[i];
  const auto update = [&] {
    for (size_t i = 0; i < count; ++i)
      next[i] = std::max(0.0, center[i] + reach * (slope[i] - static_cast<double>(budget_)));
  };
  update();
  double lowest_plane = 0;
  for (int exchange = 0; exchange <= kExchanges; ++exchange) {
    size_t lowest = 0, highest = choices_.size();
    double least = 0, most = 0;
    for (size_t k = 0; k < choices_.size(); ++k) {
      const double proven = proven_by(choices_[k], next);
      if (k == 0 || proven < least) {
        least = proven;
        lowest = k;
      }
      if (choices_[k].share > 0 && (highest == choices_.size() || proven > most)) {
        most = proven;
        highest = k;
      }
    }
    lowest_plane = least;
    if (lowest == highest || most - least <= 1e-4 * std::abs(most) || exchange == kExchanges) break;
    Choice &from = choices_[highest], &to = choices_[lowest];
    double square = 0;
    for (size_t i = 0; i < count; ++i) {
      const double step = to.bytes[i] - from.bytes[i];
      if (next[i] > 0 || step > 0) square += step * step;
    }
    if (square == 0) break;
    const double moved = std::min(from.share, (most - least) / (reach * square));
    from.share = moved == from.share ? 0 : from.share - moved;
    to.share += moved;
    for (size_t i = 0; i < count; ++i) slope[i] += moved * (to.bytes[i] - from.bytes[i]);
    update();
  }
  return lowest_plane;
}

void BoundRaiser::forget_idle() {
  for (size_t k = 0; k < choices_.size() && choices_.size() > kMostChoices;)
    if (choices_[k].share == 0) {
      choices_.erase(choices_.begin() + static_cast<std::ptrdiff_t>(k));
    } else {
      ++k;
    }
}

ProvenTime BoundRaiser::raise(const BytePrices& start, int64_t budget, double known, int cuts) {
  budget_ = budget;
  Prices center(positions_.size(), 0), next(positions_.size());
  std::vector<double> gathered(start.size(), 0);
  for (size_t i = 0; i < start.size(); ++i) gathered[static_cast<size_t>(cut_.decided_by()[i])] += start[i];
  for (size_t i = 0; i < positions_.size(); ++i) center[i] = gathered[static_cast<size_t>(positions_[i])];
  double proven = ask(center);
  for (Choice& choice : choices_) choice.share = 0;
  choices_.back().share = 1;
  double square = 0;
  for (double bytes : choices_.back().bytes)
    square += (bytes - static_cast<double>(budget)) * (bytes - static_cast<double>(budget));
  if (square == 0) return {proven, spread_out(center)};
  double reach = std::max(known - proven, 1e-6) / square;
  int waited = 0, ended = 0;
  for (int i = 1; i < cuts && ended < kEnds && proven < (1 - kNear) * known; ++i) {
    const double promised = find_next(center, reach, next) - proven;
    const double then = ask(next);
    if (promised < kNothing * known) {
      ++ended;
      reach *= 8;
    } else if (then - proven > kRisenWell * promised) {
      reach *= 2;
    }
    if (then - proven > kRisenEnough * promised && then > proven) {
      center = next;
      proven = then;
      waited = 0;
    } else if (++waited % kPatience == 0) {
      reach /= 2;
    }
    forget_idle();
  }
  return {proven, spread_out(center)};
}

}  // namespace lowtide
