// What to keep where a byte costs so many milliseconds at each position: the cheapest choice at these prices, found as
// a minimum cut, and what it proves.
//
//   source ──∞──▶ [value is there in backward] ──price of keeping it──▶ [its node runs again] ──its time──▶ sink
//                              ▲                                                   │
//                              └───────────────────────∞───────────────────────────┘   so is all that the node reads
//
// The price of keeping is that of the cheaper way: whole, or packed with the time that packing takes.
#pragma once

#include <vector>

#include "memory/budget/min_cut.h"
#include "memory/budget/model.h"

namespace lowtide {

// Milliseconds a byte, by position.
using BytePrices = std::vector<double>;

class PriceCut {
 public:
  explicit PriceCut(const StepModel& model);

  // What is cheapest at these prices, where a value is priced over the stretch in which it is likely to be needed, and
  // what runs again without a budget costs no time.
  Kept choose(const BytePrices& prices);

  // The least time that running nodes again takes in any plan of this order whose arena needs no more than `budget`
  // bytes: a Lagrangian bound, so true for whatever prices it is asked with; negative where they prove nothing. Values
  // are priced over stretches that no plan can avoid.
  double bound(const BytePrices& prices, int64_t budget);
  // By position, the bytes that the choice behind the last bound holds: where they are more than the budget, a higher
  // price may prove more, where they are fewer, a lower one.
  std::vector<int64_t> bytes_at_bound() const;

  // By position, one at which a price proves no less: in any choice as many bytes live there that may be given up, and
  // there are no fewer that may not. And those positions that stand for themselves, in order.
  const std::vector<int32_t>& decided_by() const { return decided_by_; }
  std::vector<int32_t> decisive_positions() const;

 private:
  void find_needed_in_forward();
  void find_stretches();
  void find_decisive();
  int64_t cut(const BytePrices& prices, const std::vector<int32_t>& until, bool defaults_are_free);
  Keep way_at_cut(size_t value) const;

  const StepModel& model_;
  FlowNetwork network_;
  std::vector<int32_t> node_of_value_;  // where its presence is decided; -1: never needed
  std::vector<int32_t> node_of_step_;   // by position; -1: its run is not decided
  std::vector<int32_t> keep_edge_;      // by value; -1: none
  std::vector<Keep> cheaper_;           // by value, at the last prices: the cheaper way to keep it
  // To the sink, with their times: of what runs again without a budget.
  std::vector<std::pair<int32_t, int64_t>> default_edges_;
  std::vector<bool> runs_in_forward_;     // by position: its node runs there, whatever is kept
  std::vector<int32_t> last_in_forward_;  // by value: the last of its readers there that do; -1: none
  // By value: the position before which it is needed in backward, as is likely, and at the earliest.
  std::vector<int32_t> likely_, earliest_;
  std::vector<int64_t> unavoidable_;  // by position: bytes that are live in every plan
  std::vector<int32_t> decided_by_;   // by position
  std::vector<bool> on_source_side_;
};

}  // namespace lowtide
