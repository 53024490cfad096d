// How an Executor hands out gradients, and what it learns of their lives behind that.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "runtime/block_pool.h"
#include "runtime/executor.h"

namespace lowtide {

Gradients Executor::hand_out(RunState& state, std::span<const int32_t> gradients) {
  const Packing& packing = *state.packing_;
  std::vector<std::shared_ptr<void>> owners = {state.arena_};
  owners.insert(owners.end(), state.gradients_.begin(), state.gradients_.end());
  Gradients results(state.binding_, std::move(owners), gradients.size());
  for (int32_t id : gradients) {
    const BoundGradient& gradient = state.binding_->gradients[static_cast<size_t>(id)];
    const auto buffer = static_cast<size_t>(gradient.buffer);
    results.add(gradient.ref, state.bases_[buffer] + gradient.offset,
                static_cast<size_t>(packing.gradient_places[buffer].block + 1));
  }
  for (size_t i = 0; i < state.gradients_.size(); ++i)
    if (packing.gradient_blocks[i].left < static_cast<int32_t>(state.next_region_)) state.gradients_[i].reset();
  if (!is_done(state)) return results;
  state.mark_.reset();
  state.arena_.reset();
  state.passing_.reset();
  state.left_.clear();
  state.gradients_.clear();
  state.outputs_.clear();
  state.copies_.clear();
  state.contexts_.clear();
  state.device_arenas_.clear();
  last_done_ = true;
  return results;
}

Gradients Executor::run_next_region(RunState& state) {
  LT_USER_CHECK(ErrorKind::kInvalidArgument, state.began_backward_ && !is_done(state),
                "a region of backward runs after begin_backward, once");
  const std::vector<int32_t>& gradients = program_.regions[state.next_region_].gradients;
  look_at_handed_out(state);
  run_region(state);
  leave_outputs(state);
  const bool done = is_done(state);
  if (done) learn_what_is_used_up(state);
  Gradients results = hand_out(state, gradients);
  (done ? last_handed_out_ : state.handed_out_) = results.watch();
  if (done) last_hand_over_ = state.hand_over_;
  return results;
}

// To whoever holds them, where no later region reads them.
void Executor::leave_outputs(RunState& state) {
  const int32_t end = program_.regions[state.next_region_ - 1].end;
  for (size_t i = 0; i < state.outputs_.size(); ++i)
    if (program_.buffers[output_buffers_[i]].last < end) state.outputs_[i].reset();
}

void Executor::look_at_handed_out(RunState& state) {
  if (state.handed_out_.empty()) return;
  const std::vector<bool>& expected = state.packing_->placement.used_up;
  const std::vector<int32_t>& gradients = program_.regions[state.next_region_ - 1].gradients;
  state.used_up_.resize(program_.gradients.size());
  bool is_held = false;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto gradient = static_cast<size_t>(gradients[i]);
    state.used_up_[gradient] = state.handed_out_[i].expired();
    is_held = is_held || (!expected.empty() && expected[gradient] && !state.used_up_[gradient]);
  }
  if (is_held) leave_arena(state);
}

void Executor::leave_arena(RunState& state) {
  habits_[static_cast<size_t>(state.hand_over_)] = {.sure = false, .used_up = {}};
  // What begun calls write does not move.
  for (PendingCall& pending : state.pending_) {
    const KernelStatus status = pending ? std::exchange(pending, nullptr)() : nullptr;
    LT_USER_CHECK(ErrorKind::kRuntime, status == nullptr, "a call that goes on while gradients leave: ", status);
  }
  const int64_t size_bytes = state.packing_->arenas[0].size_bytes;
  std::shared_ptr<Block> to = process_pool().acquire(size_bytes);
  std::memcpy(to->data, state.arena_->data, static_cast<size_t>(size_bytes));
  for (size_t i = 0; i < program_.buffers.size(); ++i)
    if (program_.buffers[i].device == 0 && state.packing_->offsets[i] >= 0)
      state.bases_[i] = to->data + state.packing_->offsets[i];
  state.left_.push_back(std::exchange(state.arena_, std::move(to)));  // contexts look there too
}

void Executor::learn_what_is_used_up(const RunState& state) {
  Habit& habit = habits_[static_cast<size_t>(state.hand_over_)];
  const bool any = std::find(state.used_up_.begin(), state.used_up_.end(), true) != state.used_up_.end();
  if (habit.sure && any) habit.used_up = state.used_up_;
}

void Executor::look_at_last_handed_out() {
  std::vector<bool>& used_up = habits_[static_cast<size_t>(last_hand_over_)].used_up;
  const std::vector<int32_t>& gradients = program_.regions.back().gradients;
  for (size_t i = 0; i < last_handed_out_.size() && !used_up.empty(); ++i)
    used_up[static_cast<size_t>(gradients[i])] = last_handed_out_[i].expired();
  last_handed_out_.clear();
}

}  // namespace lowtide
