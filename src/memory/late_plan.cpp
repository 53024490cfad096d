#include "memory/late_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ir/verify.h"
#include "memory/peak.h"
#include "schedule/early_gathers.h"

namespace lowtide {

namespace {

// The moves were judged by lives alone: the peak that is true counts copies, scratch and packing too.
bool needs_more(const Program& program, const Program& than, const std::vector<DimValues>& sizes) {
  const auto now = planned_memory_at(program, sizes), before = planned_memory_at(than, sizes);
  for (size_t i = 0; i < sizes.size(); ++i)
    if (now[i] && before[i] && now[i]->peak_bytes > before[i]->peak_bytes) return true;
  return false;
}

// What a step is wherever it stands: its node, and its number among those of the node; of a wait, the node that began,
// and -1.
using StepOfNode = std::pair<NodeId, int32_t>;

std::vector<StepOfNode> steps_of_nodes(const Graph& graph, const PlanResult& planned) {
  std::map<NodeId, int32_t> counts;
  std::vector<StepOfNode> result;
  for (size_t i = 0; i < planned.program.steps.size(); ++i) {
    const ProgramStep& step = planned.program.steps[i];
    if (step.kind == StepKind::kWait) {
      result.emplace_back(result[static_cast<size_t>(step.index)].first, -1);
      continue;
    }
    const NodeId node = graph.order()[static_cast<size_t>(planned.step_positions[i])];
    result.emplace_back(node, counts[node]++);
  }
  return result;
}

// The same runs of steps in the other plan; nothing where one is torn apart there. Both plans have no loops.
std::optional<std::vector<RowBlocks>> moved(const std::vector<RowBlocks>& blocks, const std::vector<StepOfNode>& from,
                                            const std::vector<StepOfNode>& to) {
  std::vector<RowBlocks> result;
  for (const RowBlocks& run : blocks) {
    const auto first = from.begin() + run.first, end = from.begin() + run.end;
    const auto found = std::search(to.begin(), to.end(), first, end);
    if (found == to.end()) return std::nullopt;
    result.push_back(run);
    result.back().first = static_cast<int32_t>(found - to.begin());
    result.back().end = result.back().first + run.end - run.first;
  }
  return result;
}

// Plans other orders of a graph, with its loops where they run the same steps.
class Planner {
 public:
  Planner(const Graph& graph, const Program& program, const PlanOptions& options, const std::vector<DimValues>& sizes)
      : graph_(graph), program_(program), blocks_(options.row_blocks), sizes_(sizes), without_loops_(options) {
    without_loops_.row_blocks = {};
  }

  // Nothing where a loop is torn apart, or the step needs more.
  std::optional<PlanResult> plan_so(const Graph& graph, std::vector<LateWait> waits) {
    verify(graph);
    PlanOptions options = without_loops_;
    options.late_waits = std::move(waits);
    PlanResult planned = plan(graph, options);
    if (!blocks_.empty()) {
      if (steps_.empty()) steps_ = steps_of_nodes(graph_, plan(graph_, without_loops_));
      std::optional<std::vector<RowBlocks>> there = moved(blocks_, steps_, steps_of_nodes(graph, planned));
      if (!there) return std::nullopt;
      options.row_blocks = std::move(*there);
      planned = plan(graph, options);
    }
    if (needs_more(planned.program, program_, sizes_)) return std::nullopt;
    return planned;
  }

 private:
  const Graph& graph_;
  const Program& program_;
  const std::vector<RowBlocks>& blocks_;
  const std::vector<DimValues>& sizes_;
  PlanOptions without_loops_;
  std::vector<StepOfNode> steps_;  // of the graph as it came, without loops
};

}  // namespace

std::optional<LatePlan> plan_late(const Graph& graph, const Program& program, const PlanOptions& options,
                                  const std::vector<DimValues>& sizes, bool may_gather_early) {
  Planner planner(graph, program, options, sizes);
  std::optional<LatePlan> found;
  Graph early = graph.clone();
  if (may_gather_early && begin_gathers_early(early))
    if (std::optional<PlanResult> planned = planner.plan_so(early, {}))
      found = LatePlan{std::move(early), std::move(*planned)};
  for (const int64_t spare_percent : {0, 5, 20}) {
    Graph late = (found ? found->graph : graph).clone();
    std::vector<LateWait> waits = end_reductions_late(late, sizes, spare_percent);
    if (waits.empty()) break;
    if (std::optional<PlanResult> planned = planner.plan_so(late, std::move(waits)))
      return LatePlan{std::move(late), std::move(*planned)};
  }
  return found;
}

}  // namespace lowtide
