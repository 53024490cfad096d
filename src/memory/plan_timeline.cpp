#include "memory/plan_timeline.h"

#include "schedule/live_bytes.h"

namespace lowtide {

Timeline plan_timeline(const Graph& graph, const PlanResult& plan, const Binding& binding, const DimValues& dims) {
  const Lifetimes lifetimes = find_lifetimes(graph, graph.order(), find_takeovers(graph, plan.value_buffers));
  const std::vector<int64_t> bytes = arena_bytes(graph, lifetimes, dims);
  Timeline timeline = live_bytes(lifetimes, bytes, graph.order().size());
  // A gradient that is copied into the parameter's layout is the copy: what it was copied from dies behind it.
  for (const GraphOutput& output : graph.outputs()) {
    const ValueId owner = lifetimes.owner(output.value);
    const int32_t buffer = plan.value_buffers[owner.at()];
    const Life& life = lifetimes.lives[owner.at()];
    if (output.kind != OutputKind::kGradient || life.holder != Holder::kGradient || buffer < 0) continue;
    if (plan.program.buffers[static_cast<size_t>(buffer)].kind == BufferKind::kGradient) continue;
    const int32_t last =
        plan.step_positions[static_cast<size_t>(plan.program.buffers[static_cast<size_t>(buffer)].last)];
    timeline.change({life.first, life.last}, {life.first, last}, bytes[owner.at()]);
  }
  std::vector<bool> is_of_value(plan.program.buffers.size());
  for (int32_t buffer : plan.value_buffers)
    if (buffer >= 0) is_of_value[static_cast<size_t>(buffer)] = true;
  const auto position = [&](int32_t step) { return plan.step_positions[static_cast<size_t>(step)]; };
  for (size_t i = 0; i < plan.program.buffers.size(); ++i) {
    const ProgramBuffer& buffer = plan.program.buffers[i];
    const bool is_planned = buffer.kind == BufferKind::kArena || buffer.kind == BufferKind::kGradient;
    if (!is_planned || is_of_value[i] || plan.step_positions.empty()) continue;
    timeline.add({position(buffer.first), position(buffer.last)}, padded_bytes(binding.buffer_bytes[i]));
  }
  for (size_t i = 0; i < binding.steps.size(); ++i) {
    const int32_t at = position(static_cast<int32_t>(i));
    timeline.add({at, at}, padded_bytes(binding.steps[i].least_scratch_bytes));
  }
  return timeline;
}

}  // namespace lowtide
