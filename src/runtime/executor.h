// Runs a Program: binds its sizes, packs its buffers, and executes its regions one after another.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bind/report.h"
#include "program/program.h"
#include "runtime/calls.h"
#include "runtime/pending_forwards.h"
#include "runtime/probe.h"
#include "runtime/step_arena.h"
#include "runtime/tensor.h"

namespace lowtide {

struct Block;
class Trace;

// How the gradients of a step reach their caller.
enum class HandOver : uint8_t {
  kTogether,            // when backward has ended
  kByRegion,            // when a region of it has
  kByRegionOntoOthers,  // likewise, and the caller has some of earlier steps, onto which he adds them
};

// One pending forward: its arena, output blocks, contexts, random key. Dropping it frees what the user does not hold.
class RunState {
 public:
  RunState();
  ~RunState();
  int32_t plan() const { return plan_; }  // ExecutorOptions::plan of the executor that made it

 private:
  friend class Executor;
  // Whoever leaves waits for the calls that still work on the state's memory.
  void wait_for_all();
  int32_t plan_ = 0;
  std::shared_ptr<Binding> binding_;
  const Packing* packing_ = nullptr;
  std::shared_ptr<PendingForwards::Mark> mark_;  // until backward has ended
  std::shared_ptr<Block> arena_;                 // the host's; of one in two (Packing::kept_bytes), the lower part
  std::shared_ptr<Block> passing_;               // of one in two, the upper part, while a half runs
  HandOver hand_over_ = HandOver::kTogether;
  std::vector<std::weak_ptr<void>> handed_out_;       // the gradients of the latest region; expired: nobody holds it
  std::vector<bool> used_up_;                         // by gradient: expired when the next region began
  std::vector<std::shared_ptr<Block>> left_;          // arenas that a gradient's holder has
  std::vector<std::shared_ptr<char>> device_arenas_;  // of the further devices
  std::vector<std::shared_ptr<Block>> gradients_;     // of Packing::gradient_blocks, those that are there
  std::vector<std::shared_ptr<Block>> outputs_;       // one after another, of the buffers of that kind
  std::vector<std::shared_ptr<Block>> copies_;  // of inputs with other strides than planned, and of absent gradients
  std::vector<CallContext> contexts_;
  std::vector<PendingCall> pending_;  // by step that begins one; empty where none is at work
  std::vector<int64_t> step_sizes_;   // by step symbol
  std::vector<char*> bases_;          // by buffer
  std::vector<int32_t> owners_;       // see RunView
  uint64_t random_key_ = 0;
  std::vector<bool> absent_;    // by incoming gradient
  std::vector<bool> left_out_;  // by incoming gradient: absent, and so are the steps that only add it
  size_t next_region_ = 0;      // that has not run
  bool began_backward_ = false;
  bool is_within_budget_ = false;
  std::shared_ptr<StepArena> step_arena_;
  size_t step_place_ = 0;
};

struct ExecutorOptions {
  bool guard = false;
  int32_t plan = 0;                      // which of its maker's plans the program is
  StepCheck check_steps{};               // for a program that the planner did not make just now
  std::vector<StepHooks> hooks{};        // further ones, around all others
  std::vector<const Device*> devices{};  // that programs may name beside the host; they outlive the executor
  // Bindings kept (one per set of input sizes), least recently used first out.
  int cached_bindings = 16;
  std::shared_ptr<PendingForwards> pending{};  // of all executors of a session; none: of this one
};

// Set by a signal handler or another thread; polled between steps, unwinds with Error(kInterrupted).
std::atomic<bool>& stop_flag();

class Executor {
 public:
  // Checks the program. Thread-compatible: one call at a time.
  Executor(Program program, ExecutorOptions options);
  ~Executor();

  const Program& program() const { return program_; }
  void set_call_handler(CallHandler handler) { handler_ = std::move(handler); }
  // Records the next steps into a Chrome trace (chrome://tracing) until stopped; stop_trace returns the JSON.
  void start_trace();
  std::string stop_trace();
  // Of the latest forward or backward: time in kernels and host calls, nothing around them.
  int64_t last_steps_ns() const { return last_steps_ns_; }

  // See Session::forward, run_forward and backward. `most_bytes`: a budget for the step and what the pool keeps free.
  std::vector<OwnedTensor> forward(std::span<const TensorRef> inputs, uint64_t random_key,
                                   std::shared_ptr<RunState>* state, int64_t most_bytes = INT64_MAX,
                                   HandOver hand_over = HandOver::kTogether);
  std::shared_ptr<RunState> run_forward(std::span<const TensorRef> inputs, uint64_t random_key,
                                        int64_t most_bytes = INT64_MAX, HandOver hand_over = HandOver::kTogether);
  Gradients backward(RunState& state, std::span<const TensorRef> gradients, std::span<const TensorRef> saved_inputs);
  // The same, region by region: first begin, then each call runs the next region and returns what it hands out, in the
  // region's order, until is_done. The caller's tensors stay where they are until then. A gradient that nobody held
  // when the next region began is expected to be used up as early in later steps of the same HandOver: their regions
  // use its bytes again. Where somebody holds one after all, the step moves to another arena and leaves him the first.
  void begin_backward(RunState& state, std::span<const TensorRef> gradients, std::span<const TensorRef> saved_inputs);
  Gradients run_next_region(RunState& state);
  bool is_done(const RunState& state) const { return state.next_region_ == program_.regions.size(); }

  // Shows every value of the next steps while its bytes are there; none stops it. `probes` in the order of
  // steps.
  void observe(std::vector<Probe> probes, Observer observer);

  // What the latest forward or backward inspected, in the order of the graph's nodes; once.
  std::vector<Inspected> take_inspected();

  const Binding& binding(std::span<const int64_t> symbol_values);
  // What packed well at the latest sizes packs well at others; the long search happens once.
  const std::vector<int32_t>& pack_order() const;
  // Whether further forwards keep what their backward needs alone, their arena in two, and others use the rest;
  // nothing: where several that are pending at once need less so, and no budget is set.
  void set_in_two(std::optional<bool> in_two) { in_two_ = in_two; }
  // Where further forwards have their bytes, but outputs, as far as there is room: they are graph `place` of the step.
  void set_step_arena(std::shared_ptr<StepArena> arena, size_t place) {
    step_arena_ = std::move(arena);
    step_place_ = place;
  }
  // Of a step with as many forwards pending at once as the last ones had; `in_two`: of one forward, so or not.
  MemoryReport memory(std::span<const int64_t> symbol_values, std::optional<bool> in_two = std::nullopt);
  // Whether gradients of the last step were still held when a step began: from then on they have a block of their own.
  bool separates_gradients() const { return separate_gradients_; }

 private:
  std::shared_ptr<Binding> find_binding(std::vector<int64_t> symbol_values);
  bool has_halves() const { return program_.regions.size() > 1; }
  void allocate(RunState& state, int64_t most_bytes);
  void choose_packing(RunState& state, int64_t most_bytes);
  void take_passing(RunState& state, int64_t most_bytes);
  // Before a region: gradients that have blocks of their own get those that it begins.
  void take_gradient_blocks(RunState& state, size_t region);
  // Where planned buffers are, from the state's blocks.
  void set_bases(RunState& state);
  // Where a place in the host's arena is.
  static char* host_place(const RunState& state, int64_t offset);
  void leave_outputs(RunState& state);
  // Before a region of backward: what became of the gradients of the last one.
  void look_at_handed_out(RunState& state);
  // Before a forward: what became of those of the last region of the backward before.
  void look_at_last_handed_out();
  void leave_arena(RunState& state);
  void learn_what_is_used_up(const RunState& state);
  // Before the first region of forward or of backward.
  void begin_half();
  // The state's next one.
  void run_region(RunState& state);
  // Steps [first, end), with all hooks.
  void run_steps(RunState& state, const RunView& run, int32_t first, int32_t end);
  KernelStatus run_step(RunState& state, const RunView& run, int32_t index);
  KernelStatus run_loop(RunState& state, const RunView& run, size_t number);
  // What step `index` has written is a size from now on.
  KernelStatus read_size(RunState& state, size_t symbol);
  // Those that earlier regions wrote: other forwards may have set others since.
  void set_sizes(RunState& state, const ProgramRegion& region);
  // What the caller's gradient has to be, with the sizes that this forward's steps wrote.
  TensorRef incoming_type(const RunState& state, size_t gradient) const;
  void find_devices();
  // Puts together what is switched on.
  void gather_hooks();
  void inspect(const RunState& state, const BoundStep& step, const TensorRef& tensor);
  // Into the caller's own tensors, also where steps read copies of them.
  void write_updates(RunState& state, std::span<const TensorRef> inputs);
  // All of the program's gradients, or those that one region hands out. After the last region the state holds nothing.
  Gradients hand_out(RunState& state, std::span<const int32_t> gradients);
  OwnedTensor make_output(RunState& state, const ProgramOutput& output) const;

  // A buffer whose bytes are the caller's: `source` as in ProgramBuffer.
  struct CallerBuffer {
    size_t buffer = 0;
    int64_t source = 0;
    bool saved = false;  // an input that backward reads again
  };

  Program program_;
  std::vector<CallerBuffer> caller_buffers_;
  std::vector<size_t> output_buffers_, constant_buffers_;
  std::vector<size_t> saved_inputs_;
  std::vector<int32_t> all_gradients_;
  std::vector<const Device*> device_memory_;  // by device of the program; of the host: none
  bool has_pending_calls_ = false;
  bool gradients_stay_ = true;          // each until the last region ends
  std::vector<int32_t> output_places_;  // by buffer: among output_buffers_, or -1
  // By incoming gradient: whether a step needs its zeros where the caller sends none.
  std::vector<bool> needs_zeros_;
  ExecutorOptions options_;
  CallHandler handler_;
  std::list<std::shared_ptr<Binding>> bindings_;  // most recently used first
  std::weak_ptr<Block> last_arena_;               // pinned after backward: PyTorch holds gradients of it
  bool last_done_ = false;
  bool separate_gradients_ = false;
  std::optional<bool> in_two_;
  std::shared_ptr<StepArena> step_arena_;
  size_t step_place_ = 0;
  // By HandOver: which gradients are expected to be used up; not `sure`: one was held after all.
  struct Habit {
    bool sure = true;
    std::vector<bool> used_up;
  };
  Habit habits_[3];
  std::vector<std::weak_ptr<void>> last_handed_out_;
  HandOver last_hand_over_ = HandOver::kTogether;
  Placement latest_places_;
  int64_t last_steps_ns_ = 0;
  std::unique_ptr<Trace> trace_;
  size_t records_ = 0;  // of all regions
  std::vector<Inspected> inspected_;
  std::optional<StepHooks> probes_;
  std::vector<StepHooks> hooks_;
};

}  // namespace lowtide
