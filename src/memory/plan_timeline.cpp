#include "memory/plan_timeline.h"

#include "schedule/live_bytes.h"

namespace lowtide {

Timeline plan_timeline(const Graph& graph, const PlanResult& plan, const Binding& binding, const DimValues& dims) {
  const Lifetimes lifetimes = find_lifetimes(graph, graph.order(), find_takeovers(graph, plan.value_buffers));
  Timeline timeline = live_bytes(lifetimes, arena_bytes(graph, lifetimes, dims), graph.order().size());
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
    timeline.add({at, at}, padded_bytes(binding.steps[i].scratch_bytes));
  }
  return timeline;
}

}  // namespace lowtide
