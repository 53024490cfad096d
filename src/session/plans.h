// The plans of a session, and which of them serves a call: without a budget always the first; under one the fastest
// that keeps within it at the call's sizes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "memory/budget/archive.h"
#include "runtime/executor.h"
#include "session/stages.h"

namespace lowtide {

class Plans {
 public:
  // `program` is the plan without budget. `stages`: of the session, made when a further plan is asked for.
  Plans(Program program, const SessionOptions& options, ExecutorOptions running, std::function<const Stages&()> stages);

  // Error(kOutOfMemory) where no plan keeps within the budget: with the least that one needs, and what makes it.
  Executor& serving(std::span<const int64_t> symbol_values);
  Executor& serving(std::span<const TensorRef> inputs);
  // The budget that the latest call is served under, its part of it where several are pending at once; INT64_MAX: none.
  int64_t most_bytes() const { return latest_.most_bytes; }
  // Where others are pending whose plans could not know of this one: what they and the smallest plan for it need beyond
  // the budget; else 0.
  int64_t over_bytes() const { return latest_.over_bytes; }
  // That of RunState::plan.
  Executor& of(int32_t plan);
  // That served last.
  Executor& latest() { return *executors_[static_cast<size_t>(latest_.plan)]; }
  int32_t latest_number() const { return latest_.plan; }

  // The archive of plans, sought at these sizes where there is none yet.
  const PlanArchive& archive(std::span<const int64_t> symbol_values);
  // As text, those that were sought or taken over; and those of an earlier process, of the same graph and options.
  std::vector<std::string> stored_archives();
  void take_over(std::vector<std::string> stored_archives) { stored_ = std::move(stored_archives); }
  // A plan as it serves, with its graph; not of the first.
  const ServedRung& served(int32_t plan);
  void set_call_handler(CallHandler handler);
  void set_in_two(std::optional<bool> in_two);
  void set_step_arena(std::shared_ptr<StepArena> arena, size_t place);
  std::optional<bool> in_two() const { return in_two_; }
  // The options have another budget now: sizes that come again are served anew.
  void change_budget() {
    chosen_.clear();
    latest_left_ = {};
  }
  // Whether the budget is that of one forward, and others have theirs.
  void take_for_a_share(bool is_a_share) { is_a_share_ = is_a_share; }
  // By plan, the peak of a step. Those of the first archive have the numbers of its rungs.
  std::vector<int64_t> peaks(std::span<const int64_t> symbol_values);
  // By plan.
  std::vector<PlanNeeds> needs(std::span<const int64_t> symbol_values);
  // Which plan serves further calls, whatever the budget, whose bytes still bound the blocks; -1: as the budget says.
  void set_plan(int32_t plan) { asked_plan_ = plan; }
  size_t count() const { return executors_.size(); }
  int64_t pending_forwards() const { return pending_->now(); }
  // Of any: see runtime/executor.h.
  bool separates_gradients() const;

 private:
  struct Place {
    size_t archive = 0;
    size_t rung = 0;
  };

  // A budget wins.
  bool takes_knee() const { return options_.memory_knee && options_.training && !has_budget(options_); }
  // What serves a call, and under which budget.
  struct Choice {
    int32_t plan = 0;
    int64_t most_bytes = INT64_MAX;
    int64_t over_bytes = 0;
    bool in_two = false;  // forwards that wait for one backward share what they only work in, of so many bytes
    int64_t passing_bytes = 0;
  };
  // What pending forwards leave of the budget to those that are to come, this one among them; of a part of the plan
  // without a budget the bytes are unused.
  struct Left {
    int64_t bytes = 0;
    int64_t forwards = 1;
    bool may_be_whole = true, may_be_in_two = false;  // as the pending ones are
    int64_t passing_bytes = 0;                        // the most that one of these works in
    int32_t plan = -1;                                // that serves a pending one of the same sizes, if it fits

    int64_t of_one() const { return bytes / forwards; }
  };
  // A plan whole or in two, and what the forwards to come need in it.
  struct Fit {
    int32_t plan = 0;
    bool in_two = false;
    int64_t bytes = INT64_MAX;
    int64_t passing_bytes = 0;
  };

  Executor& serve(Choice choice);
  // Forwards, with the one that comes.
  int64_t at_once() const;
  Left left() const;
  Executor& serving(std::span<const int64_t> symbol_values, Left left, bool is_known);
  Choice choose(const std::vector<int64_t>& symbol_values, Left left, bool is_known);
  // As fastest_within, of plans as they serve: messages that travel may need more at other sizes than the archive's.
  std::optional<Fit> serving_within(const std::vector<int64_t>& symbol_values, const Left& left, Fit& least);
  // The fastest of the plans there are that fits. `least`: the smallest of them.
  std::optional<Fit> fastest_within(const std::vector<int64_t>& symbol_values, const Left& left, Fit& least);
  std::optional<Fit> fit(int32_t plan, const std::vector<int64_t>& symbol_values, const Left& left, Fit& least);
  Choice within(const Fit& fit, const std::vector<int64_t>& symbol_values, const Left& left);
  // By plan, the predicted time of a step at these sizes beyond that of all nodes once.
  std::vector<double> extra_milliseconds(const std::vector<int64_t>& symbol_values) const;
  std::unique_ptr<Binding> bound(int32_t plan, const std::vector<int64_t>& symbol_values);
  // The peak of a step in this plan.
  int64_t needed(int32_t plan, const std::vector<int64_t>& symbol_values);
  // Of a step of so many forwards whose arenas are in two.
  MemoryReport needs_in_two(int32_t plan, const std::vector<int64_t>& symbol_values, int64_t forwards);
  const PlanArchive& seek(const std::vector<int64_t>& symbol_values);
  void add(std::unique_ptr<PlanArchive> archive);
  void read_stored();
  const Program& program_of(int32_t plan);
  Rung& rung_of(int32_t plan);
  ArchiveContext context() const { return {*stages_().memory_optimizer, {options_.disabled_kernels}, options_.guard}; }
  [[noreturn]] void refuse(const Fit& least, const std::vector<int64_t>& symbol_values, const Left& left);

  const SessionOptions& options_;
  const std::shared_ptr<PendingForwards> pending_ = std::make_shared<PendingForwards>();
  ExecutorOptions running_;
  const std::function<const Stages&()> stages_;
  CallHandler handler_;
  std::optional<bool> in_two_;
  std::shared_ptr<StepArena> step_arena_;
  size_t step_place_ = 0;
  std::vector<std::string> stored_;                     // archives that nobody has asked for yet
  std::vector<std::unique_ptr<PlanArchive>> archives_;  // each sought at sizes for which those before had no plan
  std::vector<Place> places_;                           // by plan; of the first: none
  std::vector<std::unique_ptr<Executor>> executors_;    // by plan; none until it serves
  std::map<int32_t, ServedRung> served_;                // by plan, where somebody asked or messages travel
  Choice latest_;
  Left latest_left_;
  // Of the forward that began last, and its sizes.
  Choice pending_choice_;
  std::vector<int64_t> pending_values_;
  int64_t pending_passing_bytes_ = 0;  // the most that a pending one works in
  bool is_a_share_ = false;
  int32_t asked_plan_ = -1;
  std::map<std::vector<int64_t>, Choice> chosen_;  // by sizes, the budget, threads
  bool chosen_for_separate_ = false;
};

}  // namespace lowtide
