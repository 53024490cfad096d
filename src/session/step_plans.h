// What the graphs of one step need together, and which of their plans serve it within a budget: several graphs where a
// module runs in pieces, with plain Python between them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "bind/report.h"
#include "runtime/step_arena.h"
#include "session/session.h"

namespace lowtide {

// Bytes of one forward with its backward.
struct StepNeed {
  StepShare share;  // of an arena that all have together
  int64_t output_bytes = 0;
  int64_t external_bytes = 0;  // of libraries, within a step of it
  int64_t graph = 0;           // whose gradients: those of the same one are added onto each other

  // What is there as long as others run.
  int64_t standing_bytes() const;
  bool waits() const { return share.is_pending && !share.is_pinned; }  // and gives up what it kept then
};

// `report`: of one forward. `is_pending`: it has a backward.
StepNeed need_of(const MemoryReport& report, bool is_pending, int64_t graph);

// The four below are of needs in the order of forwards; backward goes from the last to the first.
// Bytes at once, however they are packed.
int64_t peak_of(std::span<const StepNeed> needs);
// Of it, what lies in no arena: outputs, and what libraries take.
int64_t bytes_beside(std::span<const StepNeed> needs);
std::shared_ptr<StepArena> arena_of(std::span<const StepNeed> needs);
// Of each, whether it keeps what its backward needs alone, so that all need least. `whole`, `in_two`: of all, so or so.
std::vector<bool> kept_in_two(std::span<const StepNeed> whole, std::span<const StepNeed> in_two);

// A plan of one graph.
struct StepOption {
  StepNeed need;
  bool in_two = false;  // it keeps what its backward needs alone
  int32_t plan = 0;
  double extra_milliseconds = 0;  // predicted, beyond those of all nodes once
};

// Of each plan of a graph the whole and the one in two.
std::vector<StepOption> options_of(std::span<const PlanNeeds> plans, bool is_pending, int64_t graph);

// The plans of all graphs of a step, from those without a budget on: ever fewer bytes for more time. They are sought as
// far as somebody asks.
class StepFrontier {
 public:
  struct Point {
    int64_t size_bytes = 0;
    std::vector<StepOption> chosen;  // by place in the step
    std::shared_ptr<StepArena> arena;
  };

  // `places`: of the step's graphs, in the order of forwards, each one's key; a graph that comes again has the same
  // plan. `options`: by key; first, without a budget, the whole and the one in two.
  StepFrontier(std::vector<int64_t> places, std::map<int64_t, std::vector<StepOption>> options);

  // The first that has no more bytes; null: there is none.
  const Point* within(int64_t most_bytes);
  // The fewest bytes, once there was nothing within some.
  int64_t floor_bytes() const { return points_.back().size_bytes; }

 private:
  void add(std::vector<StepOption> chosen);
  bool go_on();
  bool find_change(std::vector<StepOption>& chosen) const;

  std::vector<int64_t> places_;
  std::map<int64_t, std::vector<StepOption>> options_;
  std::vector<Point> points_;       // ever fewer bytes
  std::vector<StepOption> chosen_;  // where the search stands
  bool is_at_end_ = false;
};

}  // namespace lowtide
