#include "step_memory.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>

#include "bindings.h"
#include "report/config.h"
#include "runtime/step_arena.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::bindings {

nb::dict memory_to_python(const MemoryReport& memory) {
  nb::dict result;
  result["planned_peak_bytes"] = memory.peak_bytes;
  result["arena_bytes"] = memory.arena_bytes;
  result["gradient_bytes"] = memory.gradient_bytes;
  result["lower_bound_bytes"] = memory.lower_bound_bytes;
  result["output_bytes"] = memory.output_bytes;
  result["external_bytes"] = memory.external_bytes;
  result["pending_forwards"] = memory.pending_forwards;
  result["kept_bytes"] = memory.kept_bytes;
  result["passing_bytes"] = memory.passing_bytes;
  result["late_bytes"] = memory.late_bytes;
  result["late_blocks"] = memory.late_blocks;
  result["bind_seconds"] = memory.bind_seconds;
  return result;
}

nb::list needs_to_python(const std::vector<PlanNeeds>& plans) {
  nb::list result;
  for (const PlanNeeds& plan : plans)
    result.append(nb::make_tuple(plan.extra_milliseconds, memory_to_python(plan.whole), memory_to_python(plan.in_two)));
  return result;
}

nb::list outcomes_to_python(const std::vector<RequestOutcome>& outcomes) {
  nb::list result;
  for (const RequestOutcome& outcome : outcomes)
    result.append(nb::make_tuple(to_string(outcome.request), outcome.request.count, outcome.found, outcome.applied));
  return result;
}

nb::dict stat_to_python(const MemoryStat& stat) {
  nb::list rows;
  for (const PlanRow& row : stat.rows) {
    nb::dict entry;
    entry["combination"] = row.combination;
    entry["frequency"] = row.frequency;
    entry["saving_bytes"] = row.saving_bytes ? nb::object(nb::int_(*row.saving_bytes)) : nb::none();
    entry["saving_symbolic"] = symbolic_bytes(row.saving);
    entry["on"] = row.on;
    entry["peak_after"] = row.peak_after ? nb::object(nb::int_(*row.peak_after)) : nb::none();
    rows.append(entry);
  }
  nb::dict result;
  result["rows"] = rows;
  result["row_lines"] = stat.row_lines;
  result["notes"] = stat.notes;
  result["insight"] = stat.insight;
  result["summary"] = stat.summary;
  result["json"] = stat.json;
  result["planned"] = stat.planned;
  result["peak_without"] = stat.peak_without;
  result["peak_with"] = stat.peak_with;
  result["notices"] = stat.notices;
  return result;
}

void bind_step_memory(nb::module_& module) {
  using Share = std::tuple<int64_t, bool, bool, int64_t, std::vector<int64_t>>;
  nb::class_<StepArena>(module, "StepArena", "One block for the graphs of a step; see src/runtime/step_arena.h.")
      .def(
          "__init__",
          [](StepArena* self, const std::vector<Share>& given) {
            std::vector<StepShare> shares;
            for (const auto& [kept, is_pending, is_pinned, passing, late] : given)
              shares.push_back({kept, is_pending, is_pinned, passing, late});
            nb::gil_scoped_release unlocked;
            new (self) StepArena(shares);
          },
          "shares"_a,
          "Of each graph: bytes that it keeps, whether it has a backward, whether they are pinned to the end of the "
          "step, what its halves work in, blocks of gradients. All in bytes.")
      .def_prop_ro("size_bytes", &StepArena::size_bytes)
      .def(
          "begin", [](StepArena& self, int64_t most_bytes) { return self.begin(process_pool(), most_bytes); },
          "most_bytes"_a,
          "Takes the block for the next step; False: gradients of the last one are still held. `most_bytes`: of it and "
          "all blocks that are free.")
      .def("forwards_end", &StepArena::forwards_end, "Behind the last forward: who has a place keeps the block.");
}

}  // namespace lowtide::bindings
