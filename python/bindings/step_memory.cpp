#include "step_memory.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "bindings.h"
#include "report/config.h"
#include "runtime/step_arena.h"
#include "session/step_plans.h"

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
  using Needs = std::vector<StepNeed>;
  nb::class_<StepArena>(module, "StepArena", "One block for the graphs of a step; see src/runtime/step_arena.h.")
      .def_prop_ro("size_bytes", &StepArena::size_bytes)
      .def(
          "begin", [](StepArena& self, int64_t most_bytes) { return self.begin(process_pool(), most_bytes); },
          "most_bytes"_a,
          "Takes the block for the next step; False: gradients of the last one are still held. `most_bytes`: of it and "
          "all blocks that are free.")
      .def("forwards_end", &StepArena::forwards_end, "Behind the last forward: who has a place keeps the block.");
  nb::class_<StepNeed>(module, "StepNeed", "Bytes of one forward with its backward; see src/session/step_plans.h.")
      .def(
          "__init__",
          [](StepNeed* self, int64_t kept_bytes, int64_t output_bytes) {
            new (self) StepNeed{{.kept = kept_bytes, .is_pinned = true, .late = {}}, output_bytes};
          },
          "kept_bytes"_a, "output_bytes"_a = 0, "Of what is there to the end of the step.")
      .def_ro("output_bytes", &StepNeed::output_bytes)
      .def_ro("external_bytes", &StepNeed::external_bytes)
      .def_prop_ro("standing_bytes", &StepNeed::standing_bytes, "There as long as others run.")
      .def_prop_ro(
          "kept_bytes", [](const StepNeed& self) { return self.share.kept; }, "From forward to backward.")
      .def(
          "without_gradients",
          [](const StepNeed& self) {
            StepNeed need = self;
            need.share.late.clear();
            return need;
          },
          "Where those of a step before are still there, which the new ones are added onto.");
  nb::class_<StepOption>(module, "StepOption", "A plan of one graph of a step; see src/session/step_plans.h.")
      .def_ro("need", &StepOption::need)
      .def_ro("in_two", &StepOption::in_two)
      .def_ro("plan", &StepOption::plan);
  nb::class_<StepFrontier>(module, "StepFrontier", "Plans of all graphs of a step; see src/session/step_plans.h.")
      .def(nb::init<std::vector<int64_t>, std::map<int64_t, std::vector<StepOption>>>(), "places"_a, "options"_a,
           "`places`: the key of each graph, in the order of forwards. `options`: by key, as Session.step_options has "
           "them.")
      .def(
          "within",
          [](StepFrontier& self,
             int64_t most_bytes) -> std::optional<std::tuple<std::vector<StepOption>, std::shared_ptr<StepArena>>> {
            nb::gil_scoped_release unlocked;
            const StepFrontier::Point* point = self.within(most_bytes);
            if (point == nullptr) return std::nullopt;
            return std::make_tuple(point->chosen, point->arena);
          },
          "most_bytes"_a, "(plan of each place, arena of all), or None.")
      .def_prop_ro("floor_bytes", &StepFrontier::floor_bytes, "The fewest, once nothing was within some.");
  module.def("step_peak", [](const Needs& needs) { return peak_of(needs); }, "needs"_a, "Bytes at once of one step.");
  module.def(
      "step_bytes_beside", [](const Needs& needs) { return bytes_beside(needs); }, "needs"_a,
      "Of its peak, what lies in no arena.");
  module.def(
      "step_arena", [](const Needs& needs) { return arena_of(needs); }, "needs"_a,
      nb::call_guard<nb::gil_scoped_release>(), "StepArena of the graphs of a step, in the order of forwards.");
  module.def(
      "kept_in_two", [](const Needs& whole, const Needs& in_two) { return kept_in_two(whole, in_two); }, "whole"_a,
      "in_two"_a, "Of each graph, whether it keeps what its backward needs alone, so that all need least.");
}

}  // namespace lowtide::bindings
