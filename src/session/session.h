// The façade: a captured graph in, training steps out. Drives lower → passes → gradient → passes → plan → program →
// executor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "lower/lower.h"
#include "memory/optimizer.h"
#include "report/insight.h"
#include "report/step_prices.h"
#include "runtime/executor.h"
#include "session/observation.h"

namespace lowtide {

struct SessionOptions {
  bool training = true;                       // false: no gradient; forward only
  bool guard = false;                         // canaries between planned buffers, checked after each half
  std::vector<std::string> disabled_passes;   // by name, for bisecting
  std::vector<std::string> disabled_kernels;  // by name or provider ("cpu", "blas"); the next one in the list is taken
  std::vector<bool> output_needs_grad;        // per module output; empty: every differentiable one
  std::string memory_config;            // plans ("FastGelu+:1:12,…") or the path of a JSON file; see report/config.h
  int memory_level = 0;                 // 1: recompute whole layers; 2: compromised plans too
  std::string probe_config;             // "level:boundary"
  std::vector<std::string> pure_calls;  // targets of fallbacks and custom functions that may run again
  int cast_level = 1;                   // of cast propagation, see passes/propagate_casts.h
  std::vector<std::string> cast_allow;  // further ops that it may touch
  bool label_sparsity = false;          // rows without a label never reach the head: passes/drop_unlabelled_rows.h
  bool padding_sparsity = false;        // nor do rows that no attention looks at reach what is below it
  bool observed = false;                // observe() shall work; graph, plan and bits stay the same
  // The most that a step may need, as MemoryReport::peak_bytes has it; 0: as much as the plan without one. Or a share
  // of what that plan needs at the sizes of the call. Where one is given, memory_config and memory_level count for
  // nothing.
  int64_t memory_budget = 0;  // bytes
  double memory_budget_fraction = 0;
  bool memory_knee = false;  // without a budget: the plan at the knee of the first sizes' frontier, at all sizes
  std::string prices;        // the text of what a step costs on this machine; empty: as shipped
#ifdef LOWTIDE_TEST_FAULTS
  // For tests of what finds faults: the step that makes this value makes it times the factor.
  std::string fault_value;
  double fault_factor = 1;
  std::string fault_lowering;  // the lowering of this ATen target fails with an InternalError
#endif
};

inline bool has_budget(const SessionOptions& options) {
  return options.memory_budget > 0 || options.memory_budget_fraction > 0;
}

// What explain() and the feature table show.
struct SessionReport {
  LoweringReport lowering;
  int native_nodes = 0;                                 // steps on our kernels or BLAS
  int aten_nodes = 0;                                   // lowered, but on PyTorch's kernels (convolution)
  int python_nodes = 0;                                 // fallbacks through Python
  std::vector<std::pair<std::string, double>> seconds;  // stage → time: lower, passes, gradient, plan
};

// What the memory optimizer tells users (report/insight.h).
struct MemoryStat {
  std::vector<PlanRow> rows;
  std::string row_lines;  // of the feature table
  std::string notes;      // below it
  std::string insight;    // MemoryInsight Summary
  std::string summary;    // MemoryOptimizer Summary
  std::string json;
  int planned = 0;                          // steps that were planned to know their peaks
  int64_t peak_without = 0, peak_with = 0;  // bytes of a step: with nothing switched on, and with what is
  std::vector<std::string> notices;         // the selection's warnings, and that it raises the peak
};

// One planned graph. Thread-compatible: calls come one at a time (Python holds a lock), but several forwards may be
// pending.
//
// The memory optimizer asks about the graph as it was before it was applied: what could be saved, and what is.
// Of one forward in a plan: with a whole arena, and with one in two (runtime/executor.h).
struct PlanNeeds {
  double extra_milliseconds = 0;  // predicted, beyond that of all nodes once
  MemoryReport whole, in_two;
};

class Session {
 public:
  // `stored_plan`: what stored_plan() gave for this graph under these options, in this process or an earlier one; then
  // nothing is planned, and what only reports show is made once one asks. Error(kInvalidProgram) where it is damaged,
  // or for another graph, other options, another build.
  Session(Graph captured, SessionOptions options, std::string_view stored_plan = {});
  ~Session();

  // ---- what the caller has to give, in the order of the captured graph's inputs: user inputs, parameters, buffers and
  // constants. Numbers of inputs below are places in this order.
  const std::vector<std::string>& input_names() const;
  // Indices of inputs of tensors that backward reads again in this plan (RunState::plan): the caller keeps them
  // (ctx.save_for_backward) and gives them to backward.
  std::vector<int> saved_inputs(int32_t plan = 0) const;
  // Indices of module outputs whose bytes backward reads (in-place changes by the user must be caught).
  std::vector<int> saved_outputs(int32_t plan = 0) const;
  // What each region of this plan's backward hands out, as indices into gradient_targets(), and the saved inputs and
  // outputs that it reads.
  struct BackwardRegion {
    std::vector<int> gradients, reads_inputs, reads_outputs;
  };
  std::vector<BackwardRegion> backward_regions(int32_t plan = 0) const;
  // Indices of inputs that forward writes (buffers, mutated inputs): the caller bumps their versions.
  const std::vector<int>& updated_inputs() const;
  // Module outputs that take a gradient, in YieldOp's order.
  const std::vector<int>& grad_outputs() const;
  // The input of each gradient that backward returns.
  const std::vector<int>& gradient_targets() const;
  // Per gradient that backward returns, indices into grad_outputs(): with none of these given it is no gradient at all.
  const std::vector<std::vector<int>>& gradient_sources() const;
  // Inputs whose values some gradient depends on, ascending. The others only lead to outputs and updates.
  const std::vector<int>& gradient_reads() const;
  // Per gradient that backward returned, whether it is one where some of grad_outputs() were `given`, and the backward
  // of custom functions gave none for these arguments: (`call` of the PythonOp, operand).
  std::vector<bool> existing_gradients(const std::vector<bool>& given,
                                       const std::set<std::pair<int64_t, int64_t>>& missing) const;

  // ---- running
  // Where Aten, PythonOp and CallGrad steps go (Python, or nothing: then such a step is an error).
  void set_call_handler(CallHandler handler);
  // Checks dtypes, shapes, strides against the captured ones (sizes bind the symbols). Writes buffer updates through
  // the given tensors. `state` (may be null in inference) receives what backward needs; dropping it frees the arena.
  std::vector<OwnedTensor> forward(std::span<const TensorRef> inputs, uint64_t random_key,
                                   std::shared_ptr<RunState>* state, HandOver hand_over = HandOver::kTogether);
  // The same without writing into any input: for a further backward through a forward of these inputs and this key,
  // whose state has had its own. In PyTorch that is retain_graph=True.
  std::shared_ptr<RunState> run_forward(std::span<const TensorRef> inputs, uint64_t random_key,
                                        HandOver hand_over = HandOver::kTogether);
  // `gradients` in the order of grad_outputs(); one with data == nullptr and present == false counts as zero.
  // Returns one gradient per gradient_targets(). A second backward on the same state is Error(kInvalidArgument).
  Gradients backward(RunState& state, std::span<const TensorRef> gradients, std::span<const TensorRef> saved_inputs);
  // The same, region by region; see Executor.
  void begin_backward(RunState& state, std::span<const TensorRef> gradients, std::span<const TensorRef> saved_inputs);
  Gradients run_next_region(RunState& state);
  bool is_done(const RunState& state) const;

  // What the Inspect nodes saw in the latest half of a step; once. See Executor::take_inspected.
  std::vector<Inspected> take_inspected();

  // ---- observing (Error(kInvalidArgument) unless the options asked for it)
  const Observation& observation() const;
  // Shows every value that the next steps make, but for inputs, under its name in the training graph. Nothing: ends it.
  void observe(Observer observer);

  // ---- looking
  // Where a budget is given, that of the plan that served last; before the first step, of the plan without.
  const Program& program() const;
  std::string captured_text() const;       // as exported
  std::string lowered_text() const;        // after functionalise and lower
  std::string forward_text() const;        // after the forward passes, before the gradient
  std::string before_memory_text() const;  // what would be planned without the memory optimizer
  std::string training_text() const;       // what is planned
  std::string plan_text(
      std::span<const int64_t> symbol_values);  // steps, buffers, peak, lower bound, waste at these sizes
  // JSON, see report/arena_picture.h. Of the plan with this number; -1: of the one that serves a call of these sizes.
  std::string arena_picture(std::span<const int64_t> symbol_values, int32_t plan = -1);
  std::string packing_csv(std::span<const int64_t> symbol_values);  // the packing problem with offsets, src/pack/csv.h
  std::string explain() const;  // per node, the kernel taken and why faster ones refused
  const SessionReport& report() const;
  // For these sizes; see runtime/executor.h.
  MemoryReport memory(std::span<const int64_t> symbol_values, std::optional<bool> in_two = std::nullopt);
  // What processes do together in the plan that serves a call of these sizes, a line each: theirs must be the same.
  std::string collectives(std::span<const int64_t> symbol_values);
  std::vector<std::string> symbols() const;
  // What bounds sizes from data in the latest forward: behind the values of symbols(), what it was planned for. Without
  // them, functions of sizes tell of the most that there may be.
  const std::vector<int64_t>& latest_bounds() const;
  Executor& executor();  // traces, bindings
  // The plan as text, with the order that packs best at these sizes. See src/session/stored_plan.h. Empty: sizes from
  // data change while its steps run, and a stored plan is trusted for what it is at given sizes.
  std::string stored_plan(std::span<const int64_t> symbol_values);

  // ---- memory
  // The optimizer that this session was made with, and what of its candidates is in force. Error(kInvalidArgument) for
  // a session without training.
  const MemoryOptimizer& memory_optimizer();
  const std::vector<RequestOutcome>& memory_outcomes() const;
  const std::vector<std::string>& memory_warnings() const;
  // In words, that what is in force plans a higher peak at these sizes than nothing would; empty where it does not, or
  // where the plan was read: what it was compared with then is not made again.
  std::string raised_peak(std::span<const int64_t> symbol_values) const;
  // The optimizer's tables at these sizes. With a configuration: as if the session had been made with it (nothing is
  // switched on); empty: the session's own. `with_peaks` plans the step once more for each row.
  MemoryStat memory_stat(std::string_view config, std::string_view probe_config, std::span<const int64_t> symbol_values,
                         bool with_peaks);
  // The plans between the fastest and the smallest at these sizes, as JSON (report/frontier.h).
  std::string frontier(std::span<const int64_t> symbol_values);
  // The step in numbers that they were sought in, as JSON (report/step_model.h).
  std::string step_model(std::span<const int64_t> symbol_values) const;
  // The planned peak at these sizes of each plan that was found so far: of the plan without budget, then of the rungs
  // of the first frontier, then of what was found at other sizes.
  std::vector<int64_t> plan_peaks(std::span<const int64_t> symbol_values);
  // Another SessionOptions::memory_budget for the next steps; what is pending goes on in its plan. `together`: of this
  // forward's blocks and those that the pool keeps free, where other graphs have the rest of a larger budget; 0:
  // `bytes`.
  void set_memory_budget(int64_t bytes, int64_t together = 0);
  // The plans that were found so far, and which of them serves further calls: see Plans.
  std::vector<PlanNeeds> plan_needs(std::span<const int64_t> symbol_values);
  void set_plan(int32_t plan);
  // Of further forwards: see runtime/executor.h.
  void set_in_two(std::optional<bool> in_two);
  std::optional<bool> in_two() const;
  bool separates_gradients() const;
  int64_t pending_forwards() const;
  void set_step_arena(std::shared_ptr<StepArena> arena, size_t place);
  // Of the latest forward: more of them wait for one backward than in the steps before, whose plans left no room for
  // it: what it and those that are pending need beyond the budget. Else 0.
  int64_t over_budget_bytes() const;
  // Of one value of the step, as JSON (report/value_story.h).
  std::string value_story(std::string_view name, std::span<const int64_t> symbol_values);
  // The most bytes that are live in the arena at these sizes, as the timeline of the planned graph tells
  // (memory/plan_timeline.h): beside memory() it shows how near that is to what is packed.
  int64_t timeline_peak(std::span<const int64_t> symbol_values) const;
  // What each step of the plan that serves these sizes is predicted to take at them, by prices in text form; empty: by
  // the session's. A step in blocks of rows: what all blocks take together.
  std::vector<StepPrice> step_prices(std::span<const int64_t> symbol_values, std::string_view prices) const;
  // The planned peak of a step with these candidates of an optimizer switched on, where a session begins at these
  // sizes: planned and packed as sessions do it.
  int64_t peak_with(const MemoryOptimizer& optimizer, std::span<const int32_t> chosen,
                    std::span<const int64_t> symbol_values) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lowtide
