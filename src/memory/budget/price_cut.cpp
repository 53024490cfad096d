#include "memory/budget/price_cut.h"

#include <algorithm>
#include <cmath>

namespace lowtide {

namespace {

// Times become integers: picoseconds.
constexpr double kUnits = 1e9;
// As if it were a day's: a price that sums over a step's positions stays far below what is never cut.
constexpr double kDearest = 1e8;

int64_t in_units(double milliseconds) { return std::llround(std::min(milliseconds, kDearest) * kUnits); }

}  // namespace

PriceCut::PriceCut(const StepModel& model) : model_(model) {
  const size_t values = model.values.size();
  node_of_value_.assign(values, -1);
  node_of_step_.assign(static_cast<size_t>(model.positions), -1);
  keep_edge_.assign(values, -1);
  cheaper_.assign(values, Keep::kWhole);
  find_needed_in_forward();
  // From what backward reads to what leads there.
  std::vector<int32_t> pending;
  const auto need = [&](int32_t value) {
    int32_t& node = node_of_value_[static_cast<size_t>(value)];
    if (!model.values[static_cast<size_t>(value)].is_optional || node >= 0) return node;
    node = network_.add_node();
    pending.push_back(value);
    return node;
  };
  for (size_t i = 0; i < values; ++i)
    if (model.values[i].is_optional && model.values[i].first_in_backward >= 0)
      network_.add_edge(0, need(static_cast<int32_t>(i)), FlowNetwork::kUncut);
  for (size_t i = 0; i < pending.size(); ++i) {
    const int32_t number = pending[i];
    const ModelValue& value = model.values[static_cast<size_t>(number)];
    const int32_t present = node_of_value_[static_cast<size_t>(number)];
    if (!value.may_run_again) {
      keep_edge_[static_cast<size_t>(number)] = network_.add_edge(present, 1, 0);
      continue;
    }
    int32_t& again = node_of_step_[static_cast<size_t>(value.producer)];
    if (again < 0) {
      again = network_.add_node();
      // What only backward needs runs once, there or here.
      const bool is_free = !runs_in_forward_[static_cast<size_t>(value.producer)];
      const int64_t time = is_free ? 0 : in_units(model.milliseconds[static_cast<size_t>(value.producer)]);
      const int32_t edge = network_.add_edge(again, 1, time);
      if (value.is_default && !is_free) default_edges_.emplace_back(edge, time);
      for (int32_t read : model.reads_again[static_cast<size_t>(value.producer)])
        if (const int32_t node = need(read); node >= 0) network_.add_edge(again, node, FlowNetwork::kUncut);
    }
    keep_edge_[static_cast<size_t>(number)] = network_.add_edge(present, again, 0);
  }
  find_stretches();
  find_decisive();
}

// What may be kept begins to be priced in forward, and ends in backward: with each position of forward there is more of
// it, with each of backward less.
void PriceCut::find_decisive() {
  const int32_t backward = std::min(model_.yield + 1, model_.positions);
  decided_by_.resize(static_cast<size_t>(model_.positions));
  const auto decide = [&](int32_t position, int32_t neighbour) {
    const bool is_itself =
        neighbour < 0 || unavoidable_[static_cast<size_t>(position)] > unavoidable_[static_cast<size_t>(neighbour)];
    decided_by_[static_cast<size_t>(position)] = is_itself ? position : neighbour;
    return decided_by_[static_cast<size_t>(position)];
  };
  for (int32_t position = backward - 1, best = -1; position >= 0; --position) best = decide(position, best);
  for (int32_t position = backward, best = -1; position < model_.positions; ++position) best = decide(position, best);
}

std::vector<int32_t> PriceCut::decisive_positions() const {
  std::vector<int32_t> positions;
  for (int32_t position = 0; position < model_.positions; ++position)
    if (decided_by_[static_cast<size_t>(position)] == position) positions.push_back(position);
  return positions;
}

void PriceCut::find_needed_in_forward() {
  runs_in_forward_.assign(static_cast<size_t>(model_.positions), true);
  last_in_forward_.assign(model_.values.size(), -1);
  std::vector<bool> is_needed(model_.values.size());
  for (int32_t position = std::min(model_.yield, model_.positions - 1); position >= 0; --position) {
    const size_t at = static_cast<size_t>(position);
    const std::span<const int32_t> made = model_.makes[at];
    runs_in_forward_[at] =
        model_.is_kept_alive[at] || made.empty() ||
        std::any_of(made.begin(), made.end(), [&](int32_t value) { return is_needed[static_cast<size_t>(value)]; });
    if (!runs_in_forward_[at]) continue;
    for (int32_t read : model_.reads[at]) {
      is_needed[static_cast<size_t>(read)] = true;
      last_in_forward_[static_cast<size_t>(read)] = std::max(last_in_forward_[static_cast<size_t>(read)], position);
    }
  }
}

void PriceCut::find_stretches() {
  const size_t values = model_.values.size();
  likely_.assign(values, -1);
  earliest_.assign(values, -1);
  for (size_t i = 0; i < values; ++i) likely_[i] = earliest_[i] = model_.values[i].first_in_backward;
  // What a node that may run again reads is needed when the node runs.
  for (int32_t position = std::min(model_.yield, model_.positions) - 1; position >= 0; --position) {
    if (node_of_step_[static_cast<size_t>(position)] < 0) continue;
    int32_t soonest = -1, latest = -1;
    for (int32_t made : model_.makes[static_cast<size_t>(position)]) {
      const int32_t early = earliest_[static_cast<size_t>(made)], late = likely_[static_cast<size_t>(made)];
      if (early >= 0 && (soonest < 0 || early < soonest)) soonest = early;
      latest = std::max(latest, late);
    }
    for (int32_t read : model_.reads_again[static_cast<size_t>(position)]) {
      const size_t value = static_cast<size_t>(read);
      if (model_.values[value].first_in_backward >= 0) continue;
      if (soonest >= 0 && (earliest_[value] < 0 || soonest < earliest_[value])) earliest_[value] = soonest;
      likely_[value] = std::max(likely_[value], latest);
    }
  }
  // With nothing kept, and nothing made again: what forward and backward hold by themselves.
  unavoidable_.assign(static_cast<size_t>(model_.positions), 0);
  std::vector<int64_t> change(static_cast<size_t>(model_.positions) + 1, 0);
  const auto add = [&](int32_t first, int32_t last, int64_t bytes) {
    if (first < 0 || first > last) return;
    change[static_cast<size_t>(first)] += bytes;
    change[static_cast<size_t>(last) + 1] -= bytes;
  };
  std::vector<int32_t> last(values, -1);
  for (int32_t position = 0; position < model_.positions; ++position) {
    if (!runs_in_forward_[static_cast<size_t>(position)]) continue;
    for (int32_t read : model_.reads[static_cast<size_t>(position)]) last[static_cast<size_t>(read)] = position;
  }
  // What its last reader may take over is not live beside what that makes.
  const auto end_of = [&](size_t value, int32_t reader) {
    if (reader < 0) return reader;
    const std::vector<Takeover>& takeovers = model_.takeovers[static_cast<size_t>(reader)];
    const bool may_be_taken = std::any_of(takeovers.begin(), takeovers.end(), [&](const Takeover& takeover) {
      return takeover.from == static_cast<int32_t>(value);
    });
    return may_be_taken ? reader - 1 : reader;
  };
  for (size_t i = 0; i < values; ++i) {
    const ModelValue& value = model_.values[i];
    if (value.producer < 0) continue;
    if (value.is_optional) {
      const bool is_made = runs_in_forward_[static_cast<size_t>(value.producer)];
      // A result that nobody reads in forward is not made there either.
      if (is_made && last_in_forward_[i] >= 0)
        add(value.producer, std::max(value.producer, end_of(i, last_in_forward_[i])), value.bytes);
      add(value.first_in_backward, end_of(i, last[i]), value.first_in_backward >= 0 ? value.bytes : 0);
    } else {
      const int32_t end = std::max(end_of(i, last[i]), value.held_until);
      add(value.producer, std::max(end, value.producer), value.bytes);
    }
  }
  for (const FixedBytes& fixed : model_.fixed) add(fixed.first, fixed.last, fixed.bytes);
  for (int32_t position = 0; position < model_.positions; ++position)
    if (runs_in_forward_[static_cast<size_t>(position)])
      add(position, position, model_.scratch[static_cast<size_t>(position)]);
  int64_t live = 0;
  for (size_t i = 0; i < unavoidable_.size(); ++i) unavoidable_[i] = (live += change[i]);
}

int64_t PriceCut::cut(const BytePrices& prices, const std::vector<int32_t>& until, bool defaults_are_free) {
  for (const auto& [edge, time] : default_edges_) network_.set_capacity(edge, defaults_are_free ? 0 : time);
  std::vector<double> sum(prices.size() + 1, 0);
  for (size_t i = 0; i < prices.size(); ++i) sum[i + 1] = sum[i] + prices[i];
  for (size_t i = 0; i < keep_edge_.size(); ++i) {
    if (keep_edge_[i] < 0) continue;
    const ModelValue& value = model_.values[i];
    const int32_t first = value.last_in_forward + 1;
    const double price = until[i] > first ? sum[static_cast<size_t>(until[i])] - sum[static_cast<size_t>(first)] : 0;
    double least = static_cast<double>(value.bytes) * price;
    cheaper_[i] = Keep::kWhole;
    if (value.packed_bytes > 0) {
      const double packed = static_cast<double>(value.packed_bytes) * price + value.packing_milliseconds;
      if (packed < least) cheaper_[i] = Keep::kPacked;
      least = std::min(least, packed);
    }
    network_.set_capacity(keep_edge_[i], in_units(least));
  }
  return network_.min_cut(on_source_side_);
}

Keep PriceCut::way_at_cut(size_t value) const {
  const int32_t present = node_of_value_[value];
  if (present < 0 || !on_source_side_[static_cast<size_t>(present)]) return Keep::kAgain;
  const ModelValue& each = model_.values[value];
  const bool runs_again =
      each.may_run_again && on_source_side_[static_cast<size_t>(node_of_step_[static_cast<size_t>(each.producer)])];
  return runs_again ? Keep::kAgain : cheaper_[value];
}

Kept PriceCut::choose(const BytePrices& prices) {
  cut(prices, likely_, true);
  Kept kept(model_.values.size());
  for (size_t i = 0; i < kept.size(); ++i) kept[i] = way_at_cut(i);
  return kept;
}

double PriceCut::bound(const BytePrices& prices, int64_t budget) {
  // Rounding may lift each edge by half a unit.
  const double slack = static_cast<double>(keep_edge_.size() + node_of_step_.size()) / kUnits;
  double cheapest = static_cast<double>(cut(prices, earliest_, false)) / kUnits - slack;
  for (size_t i = 0; i < prices.size(); ++i) cheapest -= prices[i] * static_cast<double>(budget - unavoidable_[i]);
  return cheapest;
}

std::vector<int64_t> PriceCut::bytes_at_bound() const {
  std::vector<int64_t> bytes(unavoidable_.size() + 1, 0);
  for (size_t i = 0; i < model_.values.size(); ++i) {
    const int32_t first = model_.values[i].last_in_forward + 1;
    const Keep way = way_at_cut(i);
    if (way == Keep::kAgain || earliest_[i] <= first) continue;
    const int64_t held = way == Keep::kPacked ? model_.values[i].packed_bytes : model_.values[i].bytes;
    bytes[static_cast<size_t>(first)] += held;
    bytes[static_cast<size_t>(earliest_[i])] -= held;
  }
  int64_t live = 0;
  for (size_t i = 0; i < unavoidable_.size(); ++i) bytes[i] = unavoidable_[i] + (live += bytes[i]);
  bytes.pop_back();
  return bytes;
}

}  // namespace lowtide
